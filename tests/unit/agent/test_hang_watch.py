"""The decision that a group hangs: rows of vitals, and half an hour of steps and pauses in virtual time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtj_agent.group import culprit, hang_watch, vitals
from dtj_agent.group.hang_watch import Hang, HangSettings, judge
from dtj_agent.group.vitals import RankVitals
from dtj_agent.workers.rank_board import RankBoard
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness

DEFAULTS = HangSettings()


def rank(number: int = 0, **changes: Any) -> RankVitals:
    """Returns a rank that made its 100th step a moment ago; a step usually takes 0.2 s."""
    return RankVitals(number, step=100, steps=100, age=0.1, phase="training", usual=0.2)._replace(**changes)


def both(**changes: Any) -> dict[int, RankVitals]:
    return {number: rank(number, **changes) for number in (0, 1)}


LOUD = {"announces": True}
ROWS: list[tuple[str, HangSettings, dict[int, RankVitals], bool, tuple[str, list[int]] | None]] = [
    ("healthy", DEFAULTS, both(), True, None),
    ("silent, below its floor", DEFAULTS, both(age=299.0), True, None),
    ("silent, above its floor", DEFAULTS, both(age=301.0), True, ("noStep", [])),
    ("silent, one rank behind", DEFAULTS, {0: rank(0, age=301), 1: rank(1, age=301, step=99)}, True, ("noStep", [1])),
    ("silent, first steps", DEFAULTS, both(age=1199.0, steps=3), True, None),
    ("silent, first steps, hung", DEFAULTS, both(age=1201.0, steps=3), True, ("noStep", [])),
    ("silent, first report late", DEFAULTS, both(age=2999.0, steps=1, first=1500.0), True, None),
    ("silent, first report late, later", DEFAULTS, both(age=301.0, first=1500.0), True, ("noStep", [])),
    ("announces, above the floor", DEFAULTS, both(age=121.0, **LOUD), True, ("noStep", [])),
    ("announces, below the floor", DEFAULTS, both(age=119.0, **LOUD), True, None),
    ("announces, at the disk", DEFAULTS, both(age=121.0, disk=True, **LOUD), True, None),
    ("only one announces", DEFAULTS, {0: rank(0, age=121.0, **LOUD), 1: rank(1, age=121.0)}, True, None),
    ("validates", DEFAULTS, {0: rank(0, age=9e3, phase="validating"), 1: rank(1, age=9e3)}, True, None),
    ("compiles", DEFAULTS, both(age=9e3, phase="compiling"), True, None),
    ("saves", DEFAULTS, both(age=9e3, phase="saving"), True, None),
    ("loads", DEFAULTS, both(age=9e3, phase="loading"), True, None),
    ("slow steps", DEFAULTS, both(age=500.0, usual=200.0), True, None),
    ("slow steps, hung", DEFAULTS, both(age=601.0, usual=200.0), True, ("noStep", [])),
    ("paused before", DEFAULTS, both(age=500.0, longest=400.0), True, None),
    ("paused before, hung", DEFAULTS, both(age=801.0, longest=400.0), True, ("noStep", [])),
    ("one rank still steps", DEFAULTS, {0: rank(0, age=5000.0), 1: rank(1)}, True, None),
    ("no step yet", DEFAULTS, both(step=None, usual=None, age=9e3), True, None),
    ("one rank has no steps", DEFAULTS, {0: rank(0, age=301), 1: RankVitals(1, age=400)}, True, ("noStep", [])),
    ("field", HangSettings(min_seconds=5.0), both(age=6.0), True, ("noStep", [])),
    ("field, pause learnt", HangSettings(min_seconds=5.0), both(age=6.0, longest=4.0), True, None),
    ("stopped", DEFAULTS, {0: rank(0), 1: rank(1, stopped=1.1)}, True, ("stopped", [1])),
    ("stopped for a moment", DEFAULTS, {0: rank(0), 1: rank(1, stopped=0.9)}, True, None),
    ("stopped before the first step", DEFAULTS, {1: RankVitals(1, stopped=2.0)}, False, ("stopped", [1])),
    ("stopped, off", HangSettings("Off"), {0: rank(0, stopped=9.0)}, True, None),
    ("off", HangSettings("Off", 5.0, 5.0), both(age=9e3, idle=9e3), True, None),
    ("report", HangSettings("Report"), both(age=301.0), True, ("noStep", [])),
    ("no life, no deadline", DEFAULTS, both(step=None, age=9e3, idle=9e3), True, None),
    ("no life", HangSettings(progress_deadline=60.0), both(step=None, age=99.0, idle=61.0), True, ("noLife", [])),
    ("no life, saving", HangSettings(progress_deadline=60.0), both(age=99.0, idle=61.0, phase="saving"), True,
     ("noLife", [])),
    ("one rank lives", HangSettings(progress_deadline=60.0), {0: rank(0, step=None, age=99.0, idle=61.0),
     1: rank(1, step=None, age=99.0, idle=59.0)}, True, None),
    ("left behind, works", DEFAULTS, {0: rank(0, age=9e3, idle=1.0)}, False, None),
    ("left behind, idle", DEFAULTS, {0: rank(0, age=9e3, idle=1801.0)}, False, ("noLife", [0])),
    ("nothing known", DEFAULTS, {}, True, None),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "ranks", "whole", "expected"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_vitals_of_a_group_show_a_hang_or_none(
    settings: HangSettings, ranks: dict[int, RankVitals], whole: bool, expected: tuple[str, list[int]] | None
) -> None:
    found = judge(settings, ranks, whole=whole)
    assert (None if found is None else (found.kind, found.ranks)) == expected


# --- half an hour in virtual time -------------------------------------------------------------------------------------

Event = tuple[float, dict[str, Any]]
"""Seconds until the report, and the report."""
MINUTES = 30


def steps(pause: Callable[[int, random.Random], float], seed: int, key: str = "step") -> Iterator[Event]:
    noise, step = random.Random(seed), 0
    while True:
        step += 1
        yield noise.uniform(0.15, 0.35) + pause(step, noise), {key: step}


def hung_at(trace: Iterator[Event], settings: HangSettings = DEFAULTS, minutes: float = MINUTES) -> Hang | None:
    """Returns the first hang that a group of two, whose ranks make the same steps, shows."""
    board, now, tick = RankBoard(1, 0.0), 0.0, 0.0
    for delay, report in trace:
        now += delay
        while tick < min(now, minutes * 60):
            tick += 1.0
            ranks = {number: board.vitals(number, tick) for number in (0, 1)}
            found = judge(settings, ranks, whole=True)
            if found is not None:
                return found
        if now > minutes * 60:
            return None
        for number in (0, 1):
            board.add({"rank": number, "attempt": 1, **report}, now)
    return None


def growing_validation(step: int, noise: random.Random) -> float:
    return 2.0 * (step // 500) if step % 500 == 0 else 0.0


def rare_reports() -> Iterator[Event]:
    for count in range(1, 100):
        yield 1500.0, {"step": count * 1000}


def test_script_that_reports_every_25_minutes_shows_no_hang() -> None:
    assert hung_at(rare_reports(), minutes=600) is None


def restarting_counts(key: str) -> Iterator[Event]:
    """Yields a long stage, and then short ones whose numbers begin again: epochs, or new optimizers."""
    yield from itertools.islice(steps(lambda step, noise: 0.0, 1, key), 3000)
    for step in itertools.cycle(range(1, 100)):
        yield 0.5, {key: 3000 if key == "optimizerSteps" else step}


@pytest.mark.parametrize("key", ["step", "optimizerSteps"])
def test_numbers_that_begin_again_show_no_hang(key: str) -> None:
    assert hung_at(restarting_counts(key), minutes=120) is None


def test_pauses_are_learnt_also_where_numbers_begin_again_or_steps_are_counted() -> None:
    board = RankBoard(1, 0.0)
    for now in (*range(1, 100), *range(401, 500)):
        board.add({"rank": 0, "attempt": 1, "step": now % 400}, float(now))
    assert board.vitals(0, 500.0).longest == 302.0
    board = RankBoard(1, 0.0)
    for step in range(1, 6):
        board.add({"rank": 0, "attempt": 1, "optimizerSteps": step}, step * 200.0)
        board.add({"rank": 0, "attempt": 1, "step": step}, step * 200.0 + 1.0)
    assert (board.vitals(0, 1001.0).usual, board.vitals(0, 1001.0).longest) == (200.0, 201.0)


def test_script_that_reports_rarely_beside_counted_steps_shows_no_hang() -> None:
    def trace() -> Iterator[Event]:
        for step in itertools.count(1):
            yield 1.0, {"optimizerSteps": step}
            if step % 500 == 0:
                yield 0.0, {"step": step}

    assert hung_at(trace(), minutes=60) is None


SILENT_PAUSES: dict[str, Callable[[int, random.Random], float]] = {
    "nothing": lambda step, noise: 0.0,
    "compile": lambda step, noise: {1: 180.0, 2: 600.0, 3: 400.0}.get(step, 0.0),
    "compile of a new shape": lambda step, noise: 240.0 if step in (3, 700, 1500) else 0.0,
    "validation": lambda step, noise: 2.5 if step % 50 == 0 else 0.0,
    "validation that grows": growing_validation,
    "long validation": lambda step, noise: 290.0 if step % 600 == 0 else 0.0,
    "save of a minute": lambda step, noise: 60.0 if step % 300 == 0 else 0.0,
    "slow disk": lambda step, noise: noise.expovariate(1 / 40.0) if noise.random() < 0.02 else 0.0,
    "pauses that grow by 80 %": lambda step, noise: 60.0 * 1.8 ** (step // 300 - 1) if step % 300 == 0 else 0.0,
}


@pytest.mark.parametrize("key", ["step", "optimizerSteps"])
@pytest.mark.parametrize("name", SILENT_PAUSES)
def test_half_hour_of_a_script_that_announces_nothing_shows_no_hang(name: str, key: str) -> None:
    for seed in range(3):
        assert hung_at(steps(SILENT_PAUSES[name], seed, key)) is None


def announced(phase: str, every: int, seconds: float) -> Iterator[Event]:
    noise, step = random.Random(1), 0
    yield 0.0, {"phase": "loading", "announcesPauses": True}
    yield 120.0, {"phase": "compiling"}
    yield 400.0, {"phase": "training", "step": 1}
    step = 1
    while True:
        step += 1
        yield noise.uniform(0.15, 0.35), {"phase": "training", "step": step}
        if step % every == 0:
            yield 0.0, {"phase": phase}
            yield seconds, {"phase": "training"}


@pytest.mark.parametrize("phase", ["validating", "saving", "compiling", "loading"])
def test_half_hour_with_long_announced_pauses_shows_no_hang(phase: str) -> None:
    assert hung_at(announced(phase, every=400, seconds=200.0)) is None


def test_pause_that_nothing_announces_is_a_hang_after_two_minutes() -> None:
    trace = [event for _, event in zip(range(1000), announced("saving", every=400, seconds=50.0), strict=False)]
    found = hung_at(iter([*trace, (9999.0, {})]))
    assert found is not None
    assert 120 <= found.seconds < 122
    assert hung_at(iter([*trace, (119.0, {}), (0.0, {"phase": "training", "step": 9999}), (119.0, {})])) is None


def test_pause_is_learnt_across_attempts() -> None:
    board = RankBoard(1, 0.0)
    board.add({"rank": 0, "attempt": 1, "step": 1}, 1.0)
    board.add({"rank": 0, "attempt": 1, "step": 2}, 201.0)
    later = RankBoard(2, 300.0, board.longest)
    later.add({"rank": 0, "attempt": 2, "step": 1}, 301.0)
    assert later.vitals(0, 302.0).longest == 200.0


def test_own_steps_of_a_script_replace_those_of_its_optimizer() -> None:
    board = RankBoard(1, 0.0)
    board.add({"rank": 0, "attempt": 1, "phase": "training", "resumedStep": 500, "step": 500}, 1.0)
    assert board.vitals(0, 1.0).step is None
    board.add({"rank": 0, "attempt": 1, "optimizerSteps": 0}, 1.5)
    assert board.vitals(0, 1.5).step is None
    board.add({"rank": 0, "attempt": 1, "optimizerSteps": 1}, 2.0)
    assert board.vitals(0, 2.0).step == 1
    board.add({"rank": 0, "attempt": 1, "phase": "training", "step": 502}, 3.0)
    board.add({"rank": 0, "attempt": 1, "optimizerSteps": 3}, 9.0)
    # The script's own numbers may be rare; the optimizer shows that it trains.
    assert (board.vitals(0, 9.0).step, board.vitals(0, 9.0).age) == (502, 0.0)


# --- the wire, and the culprit ----------------------------------------------------------------------------------------


def test_vitals_survive_the_wire() -> None:
    full = rank(3, stopped=1.5, idle=7.0, disk=True, announces=True, longest=2.0, own=0.1, first=3.0, start=4.0)
    assert vitals.parse([full.to_json(), rank(4).to_json()]) == [full, rank(4)]


@pytest.mark.parametrize(
    "rows", [None, 5, "x", [None], [{"step": 3}], [{"rank": -1}], [{"rank": True}], [{"rank": "0"}]]
)
def test_vitals_without_a_rank_are_dropped(rows: object) -> None:
    assert vitals.parse(rows) == []


def test_invalid_fields_of_vitals_take_their_defaults() -> None:
    row = {"rank": 2, "step": -1, "age": float("nan"), "usual": "x", "phase": "?", "announces": 1, "new": [1]}
    assert vitals.parse([row]) == [RankVitals(2)]


IN_COLLECTIVE = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007e (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 2825 in all_reduce
  File "/app/train.py", line 40 in step
"""
IN_SCRIPT = """Thread 0x00007f (most recent call first):
  File "/site-packages/torch/autograd/graph.py", line 825 in _engine_run_backward

Thread 0x00007e (most recent call first):
  File "/app/data.py", line 7 in read
  File "/app/train.py", line 38 in step
"""


def test_rank_outside_of_a_collective_is_the_culprit() -> None:
    places = {0: culprit.place(IN_COLLECTIVE), 1: culprit.place(IN_SCRIPT)}
    assert places[1].line == "/app/data.py:7 in read"
    assert culprit.suspects([0, 1], places) == culprit.suspects([0, 1], {1: places[1]}) == [1]


def test_rank_that_stands_alone_is_the_culprit() -> None:
    one, other = culprit.Place("a.py:1 in f", False), culprit.Place("a.py:2 in f", False)
    assert culprit.suspects([0, 1, 2], {0: one, 1: other, 2: one}) == [1]


def test_rank_without_a_stack_is_the_culprit_if_all_others_wait() -> None:
    assert culprit.suspects([0, 1], {0: culprit.place(IN_COLLECTIVE)}) == [1]


def test_no_rank_stands_out_without_stacks() -> None:
    assert culprit.suspects([1, 0], {}) == [0, 1]
    assert culprit.place("garbage") == culprit.Place("", False)


def test_limit_is_the_greatest_of_floor_steps_and_pauses() -> None:
    assert hang_watch.limit(DEFAULTS, both()) == 300.0
    assert hang_watch.limit(DEFAULTS, both(usual=150.0)) == 450.0
    assert hang_watch.limit(DEFAULTS, both(longest=200.0)) == 400.0
    assert hang_watch.limit(DEFAULTS, both(), longest=500.0) == 1000.0


# --- the coordinator --------------------------------------------------------------------------------------------------


def beat(group: CoordinatorHarness, ordinal: int, attempt: int = 1, **changes: Any) -> None:
    rows = [rank(ordinal * 2 + local, **changes).to_json() for local in (0, 1)]
    group.receive(ordinal, "beat", attempt=attempt, ranks=rows)


def test_hung_group_gives_its_stacks_and_restarts_counted() -> None:
    group = CoordinatorHarness(2).running()
    for ordinal in (0, 1):
        beat(group, ordinal, age=301.0)
    group.wait(0.1)
    assert [message for _, message in group.messages("beat")] == [{"type": "beat", "stacks": 1}] * 2
    assert not group.messages("stop")
    group.receive(0, "beat", attempt=1, stacks={"0": IN_COLLECTIVE, "1": IN_COLLECTIVE})
    assert not group.messages("stop")
    group.receive(1, "beat", attempt=1, stacks={"2": IN_COLLECTIVE, "3": IN_SCRIPT})
    assert [message["grace"] for _, message in group.messages("stop")] == [0.0, 0.0]
    group.stopped(0, 1)
    failure = group.coordinator.history.failures[0]
    assert (failure["reason"], failure["rank"], failure["pod"], failure["node"]) == ("WorkerHung", 3, "j-1", "w1")
    assert failure["message"].startswith("no step for 301 s, usually one takes 0.2 s: the others wait for rank 3")
    assert failure["message"].endswith("it is at /app/data.py:7 in read")
    assert failure["stack"] == IN_SCRIPT
    assert group.coordinator.history.restarts == {"inPlace": 1, "pod": 0, "counted": 1}


def test_pause_that_was_taken_for_a_hang_must_last_twice_as_long_the_next_time() -> None:
    """A long evaluation that nothing announces would otherwise end every attempt."""
    group = CoordinatorHarness(2).running()
    for ordinal in (0, 1):
        beat(group, ordinal, age=301.0)
    group.wait(0.1)
    group.wait(names.STACKS_SECONDS)
    assert len(group.messages("stop")) == 2
    assert group.coordinator.lifecycle.guard._earlier.longest >= 300.0


def test_hung_group_without_stacks_restarts_after_their_deadline() -> None:
    group = CoordinatorHarness(2).running()
    for ordinal in (0, 1):
        beat(group, ordinal, age=301.0)
    group.wait(0.1)
    group.wait(names.STACKS_SECONDS - 0.1)
    assert not group.messages("stop")
    group.wait(0.2)
    assert len(group.messages("stop")) == 2
    group.stopped(0, 1)
    assert "no rank stands out" in group.coordinator.history.failures[0]["message"]


def test_stopped_rank_ends_the_attempt_without_a_stack() -> None:
    group = CoordinatorHarness(2).running()
    beat(group, 1, stopped=1.1)
    assert not group.messages("beat")
    assert len(group.messages("stop")) == 2
    group.fail(0, -6)
    group.stopped(0, 1)
    failures = group.coordinator.history.failures
    assert [(failure["reason"], failure["rank"]) for failure in failures] == [("WorkerHung", 2)]
    assert failures[0]["message"] == (
        "rank 2 (j-1 on node w1) has been stopped by a signal for 1.1 s; the same holds for rank 3"
    )


def test_member_that_is_done_is_not_judged_with_the_others() -> None:
    group = CoordinatorHarness(2).running()
    beat(group, 0, age=10.0)
    group.receive(0, "done", attempt=1, port=1)
    beat(group, 1, age=9999.0, idle=5.0)
    group.wait(1.0)
    assert not group.messages("beat")
    beat(group, 1, age=9999.0, idle=1801.0)
    group.wait(1.0)
    group.wait(names.STACKS_SECONDS)
    assert group.messages("stop")


def test_step_that_arrives_while_stacks_are_taken_ends_the_suspicion() -> None:
    group = CoordinatorHarness(2).running()
    for ordinal in (0, 1):
        beat(group, ordinal, age=301.0)
    group.wait(0.1)
    beat(group, 0)
    group.wait(names.STACKS_SECONDS)
    group.wait(names.STACKS_SECONDS)
    assert not group.messages("stop")


def test_group_with_an_agent_that_sends_no_vitals_is_not_judged_by_its_steps() -> None:
    group = CoordinatorHarness(2).running()
    beat(group, 0, age=9999.0)
    group.wait(2.0)
    assert not group.messages("beat")


def test_hang_that_is_only_reported_is_an_event_once() -> None:
    group = CoordinatorHarness(2, hang=HangSettings("Report")).running()
    for _ in range(4):
        for ordinal in (0, 1):
            beat(group, ordinal, age=301.0)
        group.wait(names.STACKS_SECONDS)
    assert not group.messages("stop")
    assert [event["reason"] for event in group.coordinator.history.events] == ["WorkerHung"]
