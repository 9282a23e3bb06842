"""A start that stands still is ended, once an earlier attempt has shown how long a start takes."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group import hang_watch
from dtj_agent.group.hang_watch import Earlier, Hang, HangSettings, judge
from dtj_agent.workers.rank_board import RankBoard
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.test_hang_watch import IN_COLLECTIVE, IN_SCRIPT, beat, rank

DEFAULTS = HangSettings()
QUICK, SLOW, SPARED = Earlier(start=12.0), Earlier(start=60.0), Earlier(start=12.0, spared=240.0)
DEAD, HALF = {"step": None, "steps": 0, "usual": None, "age": 121.0, "idle": 61.0}, HangSettings(min_seconds=70.0)
STARTS: list[tuple[str, HangSettings, Earlier, dict[str, Any], dict[str, Any], bool]] = [
    ("stands still", DEFAULTS, QUICK, {}, {}, True),
    ("loads, and stands still", DEFAULTS, QUICK, {"phase": "loading"}, {"phase": "loading"}, True),
    ("below the floor", DEFAULTS, QUICK, {"age": 119.0}, {}, False),
    ("no start is known", DEFAULTS, Earlier(longest=90.0), {"age": 9e3, "idle": 9e3}, {"age": 9e3, "idle": 9e3}, False),
    ("slow starts", DEFAULTS, SLOW, {"age": 179.0}, {"age": 179.0}, False),
    ("slow starts, hung", DEFAULTS, SLOW, {"age": 181.0}, {"age": 181.0}, True),
    ("one start hung already", DEFAULTS, SPARED, {"age": 239.0}, {"age": 239.0}, False),
    ("one start hung already, hung again", DEFAULTS, SPARED, {"age": 241.0}, {"age": 241.0}, True),
    ("one rank lives", DEFAULTS, QUICK, {"idle": 59.0}, {}, False),
    ("one rank has stepped", DEFAULTS, QUICK, {"step": 1, "steps": 1}, {}, False),
    ("at the disk", DEFAULTS, QUICK, {"disk": True, "age": 299.0}, {"age": 299.0}, False),
    ("at the disk, hung", DEFAULTS, QUICK, {"disk": True, "age": 301.0}, {"age": 301.0}, True),
    ("compiles", DEFAULTS, QUICK, {"phase": "compiling"}, {"phase": "loading"}, False),
    ("validates", DEFAULTS, QUICK, {"phase": "validating"}, {}, False),
    ("saves", DEFAULTS, QUICK, {"phase": "saving"}, {}, False),
    ("is done", DEFAULTS, QUICK, {"phase": "done"}, {}, False),
    ("field", HALF, QUICK, {"age": 71.0}, {"age": 71.0}, True),
    ("field, slow starts", HALF, SLOW, {}, {}, False),
    ("report", HangSettings("Report"), QUICK, {}, {}, True),
    ("off", HangSettings("Off"), QUICK, {}, {}, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "earlier", "one", "other", "hung"), [r[1:] for r in STARTS], ids=[r[0] for r in STARTS]
)
def test_start_is_judged_by_those_of_earlier_attempts(
    settings: HangSettings, earlier: Earlier, one: dict[str, Any], other: dict[str, Any], hung: bool
) -> None:
    ranks = {0: rank(0, **{**DEAD, **one}), 1: rank(1, **{**DEAD, **other})}
    found = judge(settings, ranks, whole=True, earlier=earlier)
    assert found == (Hang("noStart", [], min(ranks[0].age, ranks[1].age), start=earlier.start) if hung else None)


def test_start_of_which_a_rank_has_ended_is_not_judged() -> None:
    ranks = {0: rank(0, **DEAD)}
    assert judge(DEFAULTS, ranks, whole=True, earlier=QUICK) is not None
    assert judge(DEFAULTS, ranks, whole=False, earlier=QUICK) is None


@pytest.mark.parametrize(("seconds", "spared"), [(120.0, 240.0), (899.0, 1798.0), (9e9, 1800.0)])
def test_start_that_was_taken_for_hung_may_take_twice_as_long_the_next_time(seconds: float, spared: float) -> None:
    assert hang_watch.spared(DEFAULTS, Hang("noStart", [], seconds)) == spared
    assert hang_watch.spared(DEFAULTS, Hang("noStep", [], seconds)) == 0.0
    assert hang_watch.spared(HALF, Hang("noStart", [], seconds)) == 0.0


def test_slowest_start_is_learnt_across_attempts() -> None:
    board = RankBoard(1, 0.0)
    assert board.start == 0.0
    board.add({"rank": 0, "attempt": 1, "step": 1}, 30.0)
    board.add({"rank": 0, "attempt": 1, "step": 2}, 90.0)
    assert (board.vitals(0, 90.0).slowest_start, board.start) == (30.0, 30.0)
    later = RankBoard(2, 100.0, board.longest, board.start)
    assert later.vitals(0, 101.0).slowest_start == 30.0
    later.add({"rank": 0, "attempt": 2, "phase": "training"}, 102.0)
    assert later.vitals(0, 103.0).slowest_start == 30.0
    later.add({"rank": 0, "attempt": 2, "step": 1}, 105.0)
    assert (later.vitals(0, 106.0).slowest_start, later.start) == (30.0, 30.0)


# --- the coordinator --------------------------------------------------------------------------------------------------


def beats(group: CoordinatorHarness, **changes: Any) -> None:
    for ordinal in (0, 1):
        beat(group, ordinal, **changes)


def restarted(policy: str = "Restart") -> CoordinatorHarness:
    """Returns a group in attempt 2, after a first step that took 12 s and a worker that failed."""
    group = CoordinatorHarness(2, hang=HangSettings(policy)).running()
    beats(group, first=12.0)
    group.fail(0)
    group.stopped(0, 1)
    group.wait(0.1)
    assert group.coordinator.history.attempt == 2
    group.sent.clear()
    return group


def test_restart_that_hangs_before_its_first_step_is_ended_and_counted() -> None:
    group = restarted()
    beats(group, attempt=2, **{**DEAD, "age": 119.0})
    group.wait(0.5)
    assert not group.messages("beat")
    beats(group, attempt=2, **DEAD)
    group.wait(0.1)
    assert [message for _, message in group.messages("beat")] == [{"type": "beat", "stacks": 2}] * 2
    group.receive(0, "beat", attempt=2, stacks={"0": IN_COLLECTIVE, "1": IN_COLLECTIVE})
    group.receive(1, "beat", attempt=2, stacks={"2": IN_COLLECTIVE, "3": IN_SCRIPT})
    assert len(group.messages("stop")) == 2
    group.stopped(0, 1, attempt=2)
    failure = group.coordinator.history.failures[-1]
    assert (failure["reason"], failure["rank"], failure["attempt"]) == ("WorkerHung", 3, 2)
    assert failure["message"] == (
        "no rank has made its first step for 121 s; the slowest start so far took 12 s; the others wait for rank 3"
        " (j-1 on node w1): it is at /app/data.py:7 in read"
    )
    assert group.coordinator.history.restarts["counted"] == 2


def test_starts_that_hang_one_after_the_other_get_twice_the_time_each() -> None:
    group = restarted()
    for attempt, seconds in ((2, 121.0), (3, 243.0), (4, 487.0)):
        beats(group, attempt=attempt, **{**DEAD, "age": seconds - 3.0})
        group.wait(1.0)
        assert not group.messages("beat")
        beats(group, attempt=attempt, **{**DEAD, "age": seconds})
        group.wait(0.1)
        group.wait(names.STACKS_SECONDS)
        group.stopped(0, 1, attempt=attempt)
        assert "no rank stands out" in group.coordinator.history.failures[-1]["message"]
        group.wait(60.0)
        group.sent.clear()
    assert group.coordinator.lifecycle.guard._earlier.start == 12.0, "a start that hung is no slow start"


def test_first_step_that_arrives_while_stacks_are_taken_ends_the_suspicion() -> None:
    group = restarted()
    beats(group, attempt=2, **DEAD)
    group.wait(0.1)
    assert len(group.messages("beat")) == 2
    beat(group, 0, attempt=2, first=121.5, steps=1)
    group.wait(names.STACKS_SECONDS + 1.0)
    assert not group.messages("stop")


def test_hung_start_that_wakes_now_and_then_is_reported_once() -> None:
    group = restarted("Report")
    for round_ in range(8):
        beats(group, attempt=2, **{**DEAD, "age": 121.0 + round_ * 70, "idle": 61.0})
        group.wait(1.0)
        group.wait(names.STACKS_SECONDS)
        beats(group, attempt=2, **{**DEAD, "age": 130.0 + round_ * 70, "idle": 1.0})
        group.wait(1.0)
    assert not group.messages("stop")
    (event,) = [event for event in group.coordinator.history.events if event["reason"] == "WorkerHung"]
    assert event["message"].startswith("no rank has made its first step for 127 s; the slowest start")
    assert len(group.messages("beat")) == 2, "stacks are taken once"


def test_new_coordinator_judges_a_start_by_what_the_agents_remember() -> None:
    group = CoordinatorHarness(2).running()
    beats(group, **DEAD)
    group.wait(1.0)
    assert not group.messages("beat")
    beats(group, **DEAD, start=12.0)
    group.wait(1.0)
    assert len(group.messages("beat")) == 2
