"""An event loop with a virtual clock: minutes of waits take no time, and are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Never waits: adds the timeout to the clock of the loop instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("the loop would wait for ever: nothing is due")
        self.now += max(timeout, 0)
        return []


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs `main` on a loop whose clock begins at 0. No socket of the loop is ever read."""
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
