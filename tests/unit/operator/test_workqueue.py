"""The work queue, on a loop whose clock is virtual: minutes of back-off pass in no time, and exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

import pytest

from dtj_operator.workqueue import WorkQueue


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Never waits: what the loop would wait is added to its clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("the loop would wait for ever: nothing is due")
        self.now += max(timeout, 0)
        return super().select(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


class Counter:
    def __init__(self) -> None:
        self.adds = 0
        self.waits: list[float] = []
        self.works: list[float] = []
        self.retries = 0

    def added(self) -> None:
        self.adds += 1

    def taken(self, waited: float) -> None:
        self.waits.append(waited)

    def worked(self, seconds: float) -> None:
        self.works.append(seconds)

    def retried(self) -> None:
        self.retries += 1


def test_a_key_that_is_added_many_times_is_handed_out_once() -> None:
    async def main() -> None:
        counter = Counter()
        queue: WorkQueue[str] = WorkQueue(counter)
        for _ in range(1000):
            queue.add("a")
        assert len(queue) == 1
        assert await queue.get() == "a"
        queue.done("a")
        assert (len(queue), counter.adds) == (0, 1)

    run(main())


def test_a_key_in_a_workers_hands_is_given_to_no_other_and_comes_back_when_it_was_added_meanwhile() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0, "a is being worked on"
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    run(main())


def test_keys_are_handed_out_in_the_order_they_were_added() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        for key in ("a", "b", "c", "a"):
            queue.add(key)
        assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]

    run(main())


def test_the_shortest_of_several_waits_holds_and_the_key_comes_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add_after("a", 10)
        queue.add_after("a", 2)
        queue.add_after("a", 5)
        assert await queue.get() == "a"
        assert loop.time() == pytest.approx(2)
        queue.done("a")
        await asyncio.sleep(60)
        assert len(queue) == 0

    run(main())


def test_taking_a_key_drops_its_older_wait() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add_after("a", 10)
        queue.add("a")
        assert await queue.get() == "a"
        queue.done("a")
        await asyncio.sleep(60)
        assert len(queue) == 0

    run(main())


def test_failures_wait_half_a_second_then_twice_as_long_up_to_five_minutes_until_forgotten() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        counter = Counter()
        queue: WorkQueue[str] = WorkQueue(counter)
        waits = []
        for _ in range(12):
            before = loop.time()
            queue.add_rate_limited("a")
            assert await queue.get() == "a"
            queue.done("a")
            waits.append(loop.time() - before)
        assert waits == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300])
        assert counter.retries == 12
        queue.forget("a")
        assert queue.add_rate_limited("a") == 0.5
        assert queue.add_rate_limited("b") == 0.5, "back-off is per key"

    run(main())


def test_a_closed_queue_hands_out_nothing_and_lets_waiting_workers_go() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        workers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.add_after("later", 5)
        queue.close()
        assert await asyncio.gather(*workers) == [None, None, None]
        queue.add("a")
        assert await queue.get() is None

    run(main())


def test_a_wake_up_is_not_lost_with_the_worker_that_got_it() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        first, second = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.add("a")  # wakes the first, which is cancelled before it runs
        first.cancel()
        assert await asyncio.wait_for(second, 60) == "a"

    run(main())


def test_it_measures_how_long_keys_wait_and_are_worked_on_and_which_is_stuck() -> None:
    async def main() -> None:
        counter = Counter()
        queue: WorkQueue[str] = WorkQueue(counter)
        queue.add("a")
        await asyncio.sleep(3)
        assert queue.longest_processing() == 0
        await queue.get()
        await asyncio.sleep(7)
        assert queue.longest_processing() == pytest.approx(7)
        queue.done("a")
        assert counter.waits == pytest.approx([3])
        assert counter.works == pytest.approx([7])

    run(main())
