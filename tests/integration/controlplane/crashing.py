"""`dtj-operator` that SIGKILL ends right after its first new write has reached the API server.

python crashing.py JOURNAL FLAGS...

The operator dies before it learns of the write. A write is new if the journal, which holds the
writes of all previous operators, lacks it. A row of these operators thus crashes after every write.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

from dtj_operator import app
from dtj_operator.kube.client import Client

_journal = Path(sys.argv.pop(1))
_call = Client._call


async def _crash(self: Client, verb: str, what: str, method: str, path: str, *args: Any, **more: Any) -> Any:
    answer = await _call(self, verb, what, method, path, *args, **more)
    query, body = (*args, None, None)[:2]
    if isinstance(body, bytes):  # an apply body is already encoded
        body = yaml.safe_load(body)
    if method != "GET" and "dryRun" not in (query or {}):
        status = (body or {}).get("status", {})
        about = (status.get("phase"), status.get("reason"), (body or {}).get("reason"))
        line = " ".join((verb, what, path, *filter(None, about)))
        known = _journal.read_text().splitlines() if _journal.exists() else []
        if line not in known:
            with _journal.open("a") as journal:
                journal.write(line + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
    return answer


Client._call = _crash  # type: ignore[method-assign]
sys.exit(app.main())
