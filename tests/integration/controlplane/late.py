"""`dtj-operator` in which one call, and all later ones, wait for a file, so that a write is late.

python late.py VERB WHAT TEXT GATE FLAGS...

The first call of VERB on WHAT whose body contains TEXT is held. GATE.held shows that the call
waits, and GATE releases it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dtj_operator import app, controller
from dtj_operator.kube.client import Client

_verb, _what, _text, _file = (sys.argv.pop(1) for _ in range(4))
_gate = Path(_file)
_call = Client._call


async def _late(self: Client, verb: str, what: str, method: str, path: str, *args: Any, **more: Any) -> Any:
    body = (*args, None, None)[1]
    text = body.decode() if isinstance(body, bytes) else json.dumps(body)  # an apply body is already encoded
    if (verb, what) == (_verb, _what) and _text in text:
        _gate.with_suffix(".held").touch()
    while _gate.with_suffix(".held").exists() and not _gate.exists():
        await asyncio.sleep(0.05)
    return await _call(self, verb, what, method, path, *args, **more)


# The call waits within a reconcile, for as long as the rest of the test takes.
controller.RECONCILE_SECONDS = 3600.0
Client._call = _late  # type: ignore[method-assign]
sys.exit(app.main())
