"""A silence that no limit ends is an event with what to do about it, and ends nothing."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dtj_agent.group.hang_watch import HINT_SECONDS, Earlier, HangSettings, unbounded_silence
from dtj_agent.workers.rank_board import RankBoard
from dtj_agent.workers.rank_watch import RankWatch
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.test_hang_watch import beat, both

DEFAULTS = HangSettings()
LONG, NOT_LONG = {"age": 9e3, "idle": HINT_SECONDS + 1}, {"age": 9e3, "idle": HINT_SECONDS - 1}
SAVING, NO_STEP = {"phase": "saving"}, {"step": None, "phase": ""}
CASES: dict[str, tuple[HangSettings, dict[str, Any], bool]] = {
    "an announced pause": (DEFAULTS, {**LONG, **SAVING}, True),
    "before the first step": (DEFAULTS, {**LONG, **NO_STEP}, True),
    "a script that only reports hangs": (HangSettings("Report"), {**LONG, **SAVING}, True),
    "not for long": (DEFAULTS, {**NOT_LONG, **SAVING}, False),
    "a step a moment ago": (DEFAULTS, {**LONG, **SAVING, "age": 1.0}, False),
    "between two steps, which has a limit": (DEFAULTS, LONG, False),
    "a deadline": (HangSettings(progress_deadline=9e9), {**LONG, **SAVING}, False),
    "off": (HangSettings("Off"), {**LONG, **SAVING}, False),
}


@pytest.mark.parametrize(("settings", "vitals", "found"), CASES.values(), ids=CASES)
def test_silence_without_a_limit_is_found(settings: HangSettings, vitals: dict[str, Any], found: bool) -> None:
    expected = min(vitals["age"], vitals["idle"]) if found else None
    assert unbounded_silence(settings, both(**vitals)) == expected


@pytest.mark.parametrize(("phase", "found"), [("", False), ("loading", False), ("compiling", True)])
def test_silence_before_the_first_step_has_a_limit_once_a_start_is_known(phase: str, found: bool) -> None:
    silence = unbounded_silence(DEFAULTS, both(**{**LONG, **NO_STEP, "phase": phase}), Earlier(start=1e5))
    assert silence == (HINT_SECONDS + 1 if found else None)


def test_silent_group_gets_one_hint_and_is_not_ended() -> None:
    group = CoordinatorHarness(2).running()
    beat(group, 0, **LONG, **SAVING)
    group.wait(1.0)
    assert group.coordinator.history.events == [], "the other pod may live"
    for _ in range(3):
        beat(group, 0, **LONG, **SAVING)
        beat(group, 1, **LONG, **SAVING)
        group.wait(1.0)
    (event,) = group.coordinator.history.events
    assert (event["type"], event["reason"]) == ("Warning", "NoSignOfLife")
    assert "for 1801 s in the phase saving" in event["message"]
    assert "spec.progressDeadlineSeconds" in event["message"]
    assert not group.messages("stop")


WRITER = """
import sys
while sys.stdin.readline():
    open("/dev/null", "w").write("x" * 65536)
    print("written", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_stack_dump_is_no_sign_of_life() -> None:
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None

        def write(_processes: object = None) -> None:
            print("write", file=worker.stdin, flush=True)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "written\n"

        write()
        now = [100.0]
        loop = SimpleNamespace(clock=lambda: now[0], later=lambda seconds, then: None)
        stacks = SimpleNamespace(request=write, pending=lambda: False, read=lambda: {0: "stack"})
        reports = SimpleNamespace(ranks=RankBoard(0, 0.0))
        watch = RankWatch(cast("Any", loop), lambda: {0: worker.pid}, cast("Any", reports), cast("Any", stacks))
        watch.vitals()
        answers: list[dict[str, str]] = []
        now[0] = 200.0
        watch.take_stacks(answers.append)
        now[0] = 210.0
        (row,) = watch.vitals()
        assert answers == [{"0": "stack"}]
        assert row["idle"] == 110.0
        write()
        now[0] = 220.0
        (row,) = watch.vitals()
        assert "idle" not in row, "what the worker itself does is one"
        worker.stdin.close()
