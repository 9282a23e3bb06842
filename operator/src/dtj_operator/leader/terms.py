"""Runs the leader's tasks in each term of this process, and ends them when the term ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dtj_operator.leader.leadership import Leader

Tasks = Sequence[Coroutine[Any, Any, None]]

logger = logging.getLogger(__name__)


class Terms:
    """Runs `workers` and `helpers`, which are called at the start of each term, while `leader` leads."""

    def __init__(
        self,
        leader: Leader,
        workers: Callable[[], Tasks],
        helpers: Callable[[], Tasks],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`ended` is called after each term, when none of its tasks runs any more."""
        self._leader = leader
        self._start_workers = workers
        self._start_helpers = helpers
        self._ended = ended
        self._workers: list[asyncio.Task[None]] = []
        self._helpers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with what a task raised."""
        while True:
            await self._leader.wait_until_leader()
            async with asyncio.TaskGroup() as group:
                self._workers = [group.create_task(work, name="worker") for work in self._start_workers()]
                self._helpers = [group.create_task(task, name="helper") for task in self._start_helpers()]
                await self._leader.lost.wait()
                # A reconcile may end at any line: the next leader repeats it.
                for task in (*self._workers, *self._helpers):
                    task.cancel()
            self._ended()

    async def drain(self, seconds: float) -> int:
        """Ends the helpers, and the workers when they are done, at the latest after `seconds`.

        Returns the number of workers that were cut off.
        """
        for task in self._helpers:
            task.cancel()
        if not self._workers:
            return 0
        _, late = await asyncio.wait(self._workers, timeout=seconds)
        for worker in late:
            worker.cancel()
        return len(late)
