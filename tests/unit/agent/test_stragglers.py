"""Slow ranks: found by their own time in a step, and reported once."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group import restart_rules
from dtj_agent.group.lifecycle import PHASE_STOPPING
from dtj_agent.group.stragglers import GRACE_SECONDS, LASTING_SECONDS, PAUSE_SECONDS, StragglerWatch
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


# --- replaced by rule -------------------------------------------------------------------------------------------------


def ruled(action: str = "RestartElsewhere", **rule: Any) -> CoordinatorHarness:
    rules = restart_rules.read([{"reasons": ["Straggler"], "action": action, **rule}])[0]
    return CoordinatorHarness(2, rules=rules).running()


def train(group: CoordinatorHarness, seconds: float, own: float = 0.3) -> None:
    """Trains with a slow rank 3, which reports once a second."""
    attempt = group.coordinator.history.attempt
    for _ in range(int(seconds)):
        rows = [rank(number, own=own if number == 3 else 0.1).to_json() for number in range(4)]
        group.receive(0, "beat", attempt=attempt, ranks=rows[:2])
        group.receive(1, "beat", attempt=attempt, ranks=rows[2:])
        group.wait(1.0)


def is_stopping(group: CoordinatorHarness) -> bool:
    return group.coordinator.phase == PHASE_STOPPING


def test_rank_that_stays_slow_is_replaced_by_rule_with_a_grace() -> None:
    group = ruled()
    train(group, LASTING_SECONDS - 5)
    assert not is_stopping(group)
    train(group, 10)
    assert is_stopping(group)
    assert {message["grace"] for _, message in group.messages("stop")} == {GRACE_SECONDS}
    group.stopped(0, 1)
    (failure,) = group.coordinator.history.failures
    assert (failure["reason"], failure["rank"], failure["pod"], failure["node"]) == ("Straggler", 3, "j-1", "w1")
    assert failure["action"] == "RestartElsewhere"
    assert group.coordinator.history.restarts["counted"] == 1
    assert group.coordinator.phase_message(group.now()) == "waiting for j-1 to be replaced on another node"


def test_rank_that_recovers_in_between_is_not_replaced() -> None:
    group = ruled()
    for _ in range(4):
        train(group, LASTING_SECONDS - 10)
        train(group, 2, own=0.1)
    assert not is_stopping(group)


def test_rank_is_replaced_once_an_hour_by_any_coordinator() -> None:
    group = ruled("RestartFree")
    train(group, LASTING_SECONDS + 5)
    group.stopped(0, 1)
    group.wait(1.0)
    assert group.coordinator.history.restarts["counted"] == 0
    attempt = group.coordinator.history.attempt
    assert attempt == 2
    train(group, LASTING_SECONDS + 5)
    assert not is_stopping(group)
    other = CoordinatorHarness(2, history=group.coordinator.history.copy(), rules=group.coordinator.spec.rules)
    other.time = group.time
    for ordinal in (0, 1):
        other.join(ordinal, attempt=attempt)
    assert other.coordinator.history.attempt == 3
    train(other, LASTING_SECONDS + 5)
    assert not is_stopping(other)
    for each in (group, other):
        each.time += PAUSE_SECONDS
        train(each, 2)
        assert is_stopping(each)


def test_rule_without_the_reason_replaces_no_slow_rank() -> None:
    rules = restart_rules.read([{"logPattern": "median rank", "action": "Fail"}])[0]
    group = CoordinatorHarness(2, rules=rules).running()
    train(group, LASTING_SECONDS + 5)
    assert not is_stopping(group)
