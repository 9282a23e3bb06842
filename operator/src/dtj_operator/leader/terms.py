"""Runs the leader's work in each term of this process, and stops it when the term ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dtj_operator.leader.leadership import Leader


class Terms:
    """Calls `start` when `leader` leads, and `stop` when it does not any more."""

    def __init__(
        self, leader: Leader, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]
    ) -> None:
        self._leader = leader
        self._start = start
        self._stop = stop

    async def run(self) -> None:
        """Runs until cancelled. The caller stops the work of the last term."""
        while True:
            await self._leader.wait_until_leader()
            await self._start()
            await self._leader.lost.wait()
            await self._stop()
