"""An API server for Leases in memory, with the faults that a real one has on demand only."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

from dtj_operator import errors
from dtj_operator.kube.resources import Resource


class LeaseServer:
    """Stores leases by namespace and name, with a resourceVersion, and reports changes to watches."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], Any] = {}
        self.version = 0
        self.changed = asyncio.Condition()
        self.writes: list[Any] = []

    async def store(self, lease: Any) -> Any:
        self.version += 1
        metadata = lease["metadata"] | {"resourceVersion": str(self.version)}
        stored = copy.deepcopy(lease | {"metadata": metadata})
        self.leases[metadata["namespace"], metadata["name"]] = stored
        self.writes.append(stored)
        async with self.changed:
            self.changed.notify_all()
        return copy.deepcopy(stored)

    async def remove(self, namespace: str, name: str) -> None:
        del self.leases[namespace, name]
        async with self.changed:
            self.changed.notify_all()


class FakeLeaseClient:
    """One replica's way to the server, with the methods of LeaseClient."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.cut_off = False
        """Whether calls hang, and watches report nothing."""
        self.fails: errors.KubeError | None = None
        self.loses_answers = False
        """Whether writes are carried out and the answers lost."""

    async def _reach(self) -> None:
        await asyncio.sleep(0.01)
        while self.cut_off:
            await asyncio.sleep(1)
        if self.fails is not None:
            raise self.fails

    async def _write(self, lease: Any) -> Any:
        stored = await self.server.store(lease)
        if self.loses_answers:
            raise errors.Transient("the connection broke")
        return stored

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        await self._reach()
        if (namespace, name) not in self.server.leases:
            raise errors.ObjectNotFound("no", status=404)
        return copy.deepcopy(self.server.leases[namespace, name])

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Any]:
        await self._reach()
        key, _, value = selector.partition("=")
        return [
            copy.deepcopy(lease)
            for (space, _), lease in self.server.leases.items()
            if space == namespace and lease["metadata"].get("labels", {}).get(key) == value
        ]

    async def create(self, resource: Resource, namespace: str, lease: Any) -> Any:
        await self._reach()
        if (namespace, lease["metadata"]["name"]) in self.server.leases:
            raise errors.Conflict("exists", status=409)
        return await self._write(lease)

    async def replace(self, lease: Any, seconds: float) -> Any:
        await self._reach()
        metadata = lease["metadata"]
        stored = self.server.leases.get((metadata["namespace"], metadata["name"]))
        if stored is None:
            raise errors.ObjectNotFound("no", status=404)
        if stored["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise errors.Conflict("another version", status=409)
        return await self._write(lease)

    async def watch_lease(self, namespace: str, name: str) -> AsyncIterator[Any]:
        shown = None
        while True:
            await self._reach()
            lease = self.server.leases.get((namespace, name))
            if lease != shown:
                shown = copy.deepcopy(lease)
                yield shown
                continue
            async with self.server.changed:
                await self.server.changed.wait()
