"""An event loop that measures what blocks it: a reconcile, a large list or a scrape may."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from time import perf_counter
from typing import Any

SHORTEST_SECONDS = 0.005
"""A shorter turn of the loop is no block. Thousands of them may come in a second, so they are not reported."""


class _Selector(selectors.DefaultSelector):
    """Knows when the loop's callbacks run: from the end of one `select` to the beginning of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.report: Callable[[float], None] = lambda seconds: None
        self._since = perf_counter()

    def select(self, timeout: float | None = None) -> list[Any]:
        seconds = perf_counter() - self._since
        if seconds >= SHORTEST_SECONDS:
            self.report(seconds)
        try:
            return super().select(timeout)
        finally:
            self._since = perf_counter()


class EventLoop(asyncio.SelectorEventLoop):
    """Reports each turn in which its callbacks took long. Nothing else is read, written or due in such a turn.

    A timer that measures how late it is would miss a block that ends before it is due.
    """

    def __init__(self) -> None:
        self._measuring = _Selector()
        super().__init__(self._measuring)

    def report_blocks(self, report: Callable[[float], None]) -> None:
        """Calls `report` from now on with the seconds of each block."""
        self._measuring.report = report
