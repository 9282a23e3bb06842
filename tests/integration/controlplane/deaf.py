"""`dtj-operator` whose first watches receive nothing, as when a firewall has dropped their connections."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dtj_operator import app, errors
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import Resource

SILENT_SECONDS = 3.0

_watch = Client.watch
_deaf: set[str] = set()


async def _silent_at_first(self: Client, resource: Resource, *args: Any, **more: Any) -> AsyncIterator[Any]:
    if resource.plural not in _deaf:
        _deaf.add(resource.plural)
        await asyncio.sleep(SILENT_SECONDS)
        raise errors.Transient("the watch was silent")
    async for events in _watch(self, resource, *args, **more):
        yield events


Client.watch = _silent_at_first  # type: ignore[assignment,method-assign]
sys.exit(app.main())
