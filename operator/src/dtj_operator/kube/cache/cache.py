"""The store with the reflectors that keep it true, and what a change means for the queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from dtj_core.plan.model import Object
from dtj_operator.kube.cache.reflector import Reflector, ReflectorObserver
from dtj_operator.kube.cache.sick_nodes import jobs_on_sick_nodes
from dtj_operator.kube.cache.store import KINDS, Key, Kind, Store, Table, version_of
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import JOB, NODE, RUNTIME

# No step of a reflector lasts longer: its watch would have been cut.
STUCK_SECONDS = 300.0

logger = logging.getLogger(__name__)

Woken = Callable[[Key, float], None]
"""Receives a job that has changed, and the seconds that more of its changes may be waited for."""


class Cache(Store):
    """The store, and the tasks that keep it true from `start` to `stop`."""

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        observer: ReflectorObserver,
        wake: Woken,
        kinds: Sequence[Kind] = KINDS,
    ) -> None:
        super().__init__(kinds)
        self._wake = wake
        self._writing: dict[Key, bool] = {}
        """Jobs whose status is being written by us, and whether a watch has shown a change of them meanwhile."""
        scopes: Sequence[str | None] = namespaces or [None]
        self._reflectors = [
            Reflector(client, table, scope, self.changed, observer)
            for table in self.tables.values()
            for scope in ([None] if table.kind.in_cluster else scopes)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to list and to watch. `failed` returns why that ended, if it did."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(each.run(), name=f"reflector {number}")
                for number, each in enumerate(self._reflectors)
            ]

    async def stop(self) -> None:
        """Ends the watches. The store stays, and `start` continues from there."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Runs from start to stop until cancelled. Raises NotServed if the CRD is deleted."""
        await self.start()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self.stop()

    async def synced(self) -> None:
        """Returns once every kind has been listed completely."""
        for each in self._reflectors:
            await each.listed.wait()

    @property
    def is_synced(self) -> bool:
        return all(each.listed.is_set() for each in self._reflectors)

    def stuck(self) -> bool:
        """Returns whether a reflector has made no step for too long, not even a failed one."""
        now = asyncio.get_running_loop().time()
        return bool(self._tasks) and any(now - each.alive > STUCK_SECONDS for each in self._reflectors)

    def changed(self, table: Table, keys: set[Key]) -> None:
        """Wakes the jobs. Nothing is woken before everything has been listed."""
        if not self.is_synced:
            return
        if table.kind.resource is RUNTIME:
            keys = {job for _, name in keys for job in self.referring_jobs(name)}
        elif table.kind.resource is NODE:
            # Of all sick nodes: the number of them decides whether their signs are believed.
            keys = jobs_on_sick_nodes(self)
        for key in keys:
            if table.kind.resource is JOB and key in self._writing:
                self._writing[key] = True
                continue  # our own write, unless its answer shows otherwise
            self._wake(key, 0.0 if table.kind.resource is JOB else window(len(self.pods(key))))

    @contextlib.contextmanager
    def status_write(self, key: Key) -> Iterator[Callable[[Object], None]]:
        """Wraps a write of the job's status, whose watch event may come before its answer.

        Yields the function that takes the answer.
        """
        self._writing[key] = False
        try:
            yield lambda answer: self._written(key, answer)
        except BaseException:
            # No answer shows whose change it was, and the retry may be minutes away.
            if self._writing[key]:
                self._wake(key, 0.0)
            raise
        finally:
            del self._writing[key]

    def _written(self, key: Key, answer: Object) -> None:
        self.answer(JOB, answer)
        stored = self.job(key)
        if stored is None or version_of(stored) != version_of(answer):
            self._wake(key, 0.0)  # somebody else has written after us, or has deleted the job


def window(pods: int) -> float:
    """Returns the seconds in which changes of the pods of one job are gathered for one reconcile.

    A group of 1,000 pods changes thousands of times while it starts, and a look at it takes longer.
    """
    return min(0.1 + pods * 0.001, 1.0)
