"""The work queue on a loop with a virtual clock: minutes of back-off take no time, and are exact."""

from __future__ import annotations

import asyncio

import pytest

from dtj_operator.workqueue import CHANGES_IN_A_ROW, Priority, WorkQueue
from tests.lib.virtual_time import run


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


def test_key_added_repeatedly_is_handed_out_once() -> None:
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


def test_key_in_work_goes_to_no_other_worker_and_returns_if_added_meanwhile() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0, "a is in work"
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


def test_shortest_of_several_delays_wins_and_key_arrives_once() -> None:
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


def test_taking_a_key_cancels_its_timer() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add_after("a", 10)
        queue.add("a")
        assert await queue.get() == "a"
        queue.done("a")
        await asyncio.sleep(60)
        assert len(queue) == 0

    run(main())


def test_backoff_doubles_from_half_a_second_to_five_minutes_until_forgotten() -> None:
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


def test_closed_queue_hands_out_no_key_and_releases_waiting_workers() -> None:
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


def test_wake_up_survives_the_cancellation_of_its_worker() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        first, second = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.add("a")  # wakes the first, which is cancelled before it runs
        first.cancel()
        async with asyncio.timeout(60):
            assert await second == "a"

    run(main())


def test_queue_measures_wait_work_and_stuck_times() -> None:
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


def test_changed_keys_go_before_those_that_are_looked_at_again() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        for name in ("poll-1", "poll-2", "raised"):
            queue.add(name, Priority.AGAIN)
        queue.add("new")
        queue.add("raised")
        queue.add("raised", Priority.AGAIN)
        assert len(queue) == 4
        assert [await queue.get() for _ in range(4)] == ["new", "raised", "poll-1", "poll-2"]
        assert len(queue) == 0

    run(main())


def test_changes_without_end_do_not_keep_the_others_waiting_for_ever() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add("poll", Priority.AGAIN)
        for number in range(3 * CHANGES_IN_A_ROW):
            queue.add(f"new-{number}")
        taken = [await queue.get() for _ in range(CHANGES_IN_A_ROW + 1)]
        assert taken[-1] == "poll"

    run(main())


def test_most_urgent_and_earliest_of_several_delays_holds() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add_after("a", 5, Priority.AGAIN)
        queue.add_after("b", 5, Priority.AGAIN)
        queue.add_after("b", 9, Priority.CHANGED)
        await asyncio.sleep(5.5)
        assert [await queue.get() for _ in range(2)] == ["b", "a"]
        assert not queue._timers

    run(main())


def test_raised_key_in_work_returns_with_its_new_urgency() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a", Priority.AGAIN)
        queue.add("b", Priority.AGAIN)
        queue.add("a")
        queue.done("a")
        assert [await queue.get() for _ in range(2)] == ["a", "b"]

    run(main())


def test_closed_queue_opens_again_empty() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(Counter())
        queue.add("old")
        queue.add_after("later", 5)
        queue.close()
        assert await queue.get() is None
        queue.add("dropped")
        queue.open()
        await asyncio.sleep(10)
        assert len(queue) == 0
        queue.add("new")
        assert await queue.get() == "new"

    run(main())
