"""The event loop reports what blocks it, wherever in time the block lies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from dtj_operator.event_loop import SHORTEST_SECONDS, EventLoop

BLOCK = 0.06


def blocks_of(main: Coroutine[Any, Any, None]) -> tuple[list[float], float]:
    """Returns the blocks that the loop reports while it runs `main`, and the seconds of all."""
    found: list[float] = []

    async def measured() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EventLoop)
        loop.report_blocks(found.append)
        await main

    began = time.perf_counter()
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(measured())
    return found, time.perf_counter() - began


def test_each_block_is_reported_once_with_its_whole_length() -> None:
    async def main() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            time.sleep(BLOCK)

    found, whole = blocks_of(main())
    assert len([seconds for seconds in found if seconds >= BLOCK]) >= 5  # a busy machine adds some
    assert sum(found) <= whole


def test_callbacks_of_one_turn_block_the_loop_together() -> None:
    async def main() -> None:
        await asyncio.gather(*(half() for _ in range(2)))

    async def half() -> None:
        time.sleep(BLOCK / 2)

    found, _ = blocks_of(main())
    assert max(found) >= BLOCK


def test_waiting_is_no_block() -> None:
    async def main() -> None:
        await asyncio.sleep(BLOCK)

    found, whole = blocks_of(main())
    assert sum(found) <= whole - BLOCK


def test_short_turns_are_not_reported() -> None:
    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    found, _ = blocks_of(main())
    assert all(seconds >= SHORTEST_SECONDS for seconds in found)
