"""Slow ranks: found by their own time in a step, and reported once."""

from __future__ import annotations

import pytest

from dtj_agent.group.stragglers import StragglerWatch
from dtj_agent.group.vitals import RankVitals
from dtj_agent.workers.rank_board import RankBoard
from tests.unit.agent.coordinator_harness import CoordinatorHarness


def rank(number: int, own: float | None) -> RankVitals:
    return RankVitals(number, step=100, steps=100, age=0.1, phase="training", usual=0.2, own=own)


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        ([0.1, 0.1, 0.1, 0.1], []),
        ([0.1, 0.1, 0.16, 0.1], [2]),
        ([0.1, 0.129], []),
        ([0.1, 0.2], [1]),
        ([0.001, 0.004], []),
        ([0.2, None], []),
        ([0.2], []),
        ([0.0, 0.0], []),
        ([], []),
    ],
)
def test_slow_ranks_are_those_far_above_the_median(own: list[float | None], slow: list[int]) -> None:
    watch = StragglerWatch()
    assert watch.look({number: rank(number, own=seconds) for number, seconds in enumerate(own)}) == slow
    assert watch.look({number: rank(number, own=seconds) for number, seconds in enumerate(own)}) == []
    assert sorted(watch.slow) == slow


def test_slow_rank_stays_slow_until_it_is_clearly_faster() -> None:
    watch = StragglerWatch()
    states = []
    for seconds in (0.14, 0.125, 0.115, 0.125, 0.14):
        watch.look({0: rank(0, own=0.1), 1: rank(1, own=seconds)})
        states.append(sorted(watch.slow))
    assert states == [[1], [1], [], [], [1]]


def test_own_time_is_known_after_twenty_reports() -> None:
    board = RankBoard(1, 0.0)
    for step in range(1, 21):
        assert board.vitals(0, 1.0).own is None
        board.add({"rank": 0, "attempt": 1, "step": step, "ownSeconds": 9.0 if step < 5 else 0.5}, float(step))
    assert board.vitals(0, 20.0).own == 0.5


def test_coordinator_reports_a_straggler_once_with_its_pod() -> None:
    group = CoordinatorHarness(2).running()
    for _ in range(3):
        rows = [rank(number, own=0.3 if number == 3 else 0.1).to_json() for number in range(4)]
        group.receive(0, "beat", attempt=1, ranks=rows[:2])
        group.receive(1, "beat", attempt=1, ranks=rows[2:])
        group.wait(1.0)
    coordinator = group.coordinator
    assert coordinator.lifecycle.stragglers() == [{"rank": 3, "pod": "j-1", "node": "w1", "ratio": 3.0}]
    assert [event["reason"] for event in coordinator.history.events] == ["Straggler"]
