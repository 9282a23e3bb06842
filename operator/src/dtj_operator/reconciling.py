"""The part of the operator that acts: the queue, its workers, the listeners and the resync, from `start` to `stop`.

The cache may be kept true by an operator that does not act.
"""

from __future__ import annotations

import asyncio
import logging

from dtj_operator.controller import Controller
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.kube.cache.cache import Cache
from dtj_operator.kube.cache.store import Key
from dtj_operator.resync import Resync
from dtj_operator.workqueue import Priority, WorkQueue

logger = logging.getLogger(__name__)


class Reconciling:
    """Starts and stops any number of times. Keys that are woken in between are dropped: a start queues all jobs."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue[Key],
        controller: Controller,
        resync: Resync,
        listeners: AgentListeners,
        workers: int,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._controller = controller
        self._resync = resync
        self._listeners = listeners
        self._count = workers
        self._workers: list[asyncio.Task[None]] = []
        self._resyncing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Waits until everything has been listed, then begins to reconcile all jobs."""
        await self._cache.synced()
        await self._listeners.start()
        self._queue.open()
        self._workers = [
            asyncio.create_task(self._controller.work(), name=f"worker {number}") for number in range(self._count)
        ]
        self._resyncing = asyncio.create_task(self._resync.run(), name="resync")

    async def stop(self, seconds: float) -> None:
        """Begins no further reconcile. Reconciles in flight have so many seconds to finish, and are then cut off."""
        self._queue.close()
        tasks, self._workers = self._workers, []
        if self._resyncing is not None:
            self._resyncing.cancel()
            self._resyncing = None
        await self._listeners.stop()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for worker in late:
            worker.cancel()
        if late:
            logger.warning("%d reconciles were cut off: the next operator repeats them", len(late))
            await asyncio.wait(late)

    def failure(self) -> BaseException | None:
        """Returns what ended the resync or a worker although nobody has stopped it; None if all of them run."""
        tasks = [*self._workers, *([self._resyncing] if self._resyncing is not None else [])]
        ended = next((task for task in tasks if task.done()), None)
        return None if ended is None or ended.cancelled() else ended.exception()

    def wake(self, key: Key, seconds: float) -> None:
        """Queues a job that has changed, after the time in which more changes may come."""
        self._queue.add_after(key, seconds, Priority.CHANGED)
