"""The views: pure functions of the job and the pods."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from dtj import durations
from dtj.errors import InputError
from dtj.local import activity
from dtj.local.progress_estimator import ProgressEstimator
from dtj.view.model import PodRow, Snapshot, seconds_left
from dtj.view.plain import PlainView, line
from dtj.view.summary import PHASES, summary
from dtj.view.table import fitted
from dtj_contract import names

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
STATUS: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "progress": {
        "step": 130,
        "totalSteps": 900,
        "loss": 0.31234,
        "samplesPerSecond": 5120.4,
        "eta": "2026-01-01T12:03:05Z",
    },
    "checkpoint": {"step": 100},
}


def snapshot(**status: Any) -> Snapshot:
    job = {"metadata": {"name": "digits"}, "status": {**STATUS, **status}}
    row = PodRow(name="digits-0", state="Running", pid=41, workers={0: 51, 1: 52}, restarts=3)
    return Snapshot(job=job, now=NOW, rows=[row])


def test_line_shows_the_whole_state() -> None:
    assert line(snapshot()) == "digits Running attempt 2 step 130/900 loss 0.3123 5120 samples/s 3 m 05 s left"
    assert line(Snapshot(job={"metadata": {"name": "digits"}}, now=NOW, rows=())) == "digits Pending"


def test_slow_ranks_are_shown_beside_the_rates() -> None:
    slow = [{"rank": 3, "pod": "digits-1", "ratio": 1.62}, {"rank": 1, "pod": "digits-0", "ratio": 1.4}]
    text = "slow: rank 3 takes 1.6 x the median (and 1 more)"
    assert line(snapshot(stragglers=slow)).endswith("left " + text)
    console = Console(file=io.StringIO(), width=160, height=40)
    console.print(fitted(console, snapshot(stragglers=slow), []))
    assert text in console.file.getvalue()  # type: ignore[attr-defined]


def test_table_has_a_row_for_each_pod() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, height=40)
    console.print(fitted(console, snapshot(), []))
    text = stream.getvalue()
    for expected in (
        "digits",
        "Running",
        "attempt 2",
        "step 130/900",
        "checkpoint 100",
        "digits-0",
        "41",
        "0 (51)  1 (52)",
        "3",
    ):
        assert expected in text


def test_plain_lines_come_with_a_change_of_phase_and_every_five_seconds_of_progress() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    for second, step, attempt in ((0, 1, 1), (1, 2, 1), (6, 3, 1), (7, 3, 2), (20, 3, 2)):
        job = {
            "metadata": {"name": "j"},
            "status": {"phase": "Running", "attempt": attempt, "progress": {"step": step}},
        }
        view.show(Snapshot(job=job, now=NOW.replace(second=second), rows=()))
    assert [text.partition(":")[2] for text in stream.getvalue().splitlines()] == [
        "00:00 j Running attempt 1 step 1",
        "00:06 j Running attempt 1 step 3",
        "00:07 j Running attempt 2 step 3",
    ]


def test_summary_shows_each_recovery_and_its_cost() -> None:
    recovery = {
        "attempt": 2, "kind": "InPlace", "reason": "WorkerFailed", "lastStep": 120, "resumedStep": 100, "lostSteps": 20,
        "seconds": {"detect": 0.01, "stop": 0.3, "schedule": 0.0, "rendezvous": 0.02, "load": 2.1, "firstStep": 0.2},
    }  # fmt: skip
    status = {
        **STATUS,
        "phase": "Complete",
        "recoveries": [recovery],
        "restarts": {"inPlace": 1, "pod": 0},
        "goodput": 0.9,
    }
    status["progress"] = {**STATUS["progress"], "metrics": {"lr": 0.1, "validation_accuracy": 0.9667}}
    lines = summary(
        {"metadata": {"name": "digits"}, "status": status}, seconds=75, run_dir=Path("/r"), checkpoint_dir=Path("/c")
    )
    assert lines[1:] == [
        "digits: Complete after 75 s",
        "  reached      step 130/900, loss 0.3123, validation_accuracy 0.9667",
        "  restarts     1 (1 in place, 0 with a new pod); the last attempt was 2",
        "  recovery     WorkerFailed (InPlace) -> attempt 2: 20 steps repeated from step 100",
        "               2.63 s: detecting 0.01 s, stopping the workers 0.30 s, rendezvous 0.02 s, "
        "importing and loading 2.10 s, first step 0.20 s",
        "  goodput      90.0 % of the time was spent on steps that count",
        "  logs         /r/*.log; status.json beside them",
        "  timeline     dtj report /r",
        "  checkpoints  /c (newest: step 100)",
    ]


def test_summary_does_not_count_checkpoints_that_the_script_writes_itself() -> None:
    status = {"phase": "Complete", "attempt": 1}
    job = {"metadata": {"name": "j"}, "status": status}
    lines = summary(job, seconds=1, run_dir=Path("/r"), checkpoint_dir=Path("/c"))
    assert lines[-1] == "  checkpoints  /c (no dtj checkpoint)"


@pytest.mark.parametrize(("lost", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps")])
def test_one_repeated_step_is_singular_in_the_summary(lost: int, text: str) -> None:
    status = {**STATUS, "recoveries": [{"attempt": 2, "lostSteps": lost, "resumedStep": 7}]}
    lines = summary({"metadata": {"name": "j"}, "status": status}, seconds=1, run_dir=Path("/r"), checkpoint_dir=None)
    assert any(f": {text} repeated from step 7" in line for line in lines)


def test_counted_steps_are_called_optimizer_steps() -> None:
    status = {
        "phase": "Complete",
        "attempt": 2,
        "progress": {"step": 61, "stepSource": "Optimizer"},
        "restarts": {"inPlace": 1, "pod": 0},
        "goodput": 0.9,
    }
    assert "61 optimizer steps" in line(snapshot(**status))
    lines = summary({"metadata": {"name": "j"}, "status": status}, seconds=75, run_dir=Path("/r"), checkpoint_dir=None)
    assert "  reached      61 optimizer steps in the last attempt" in lines
    assert "  goodput      at least 90.0 % of the time was spent on steps that count" in lines


def test_estimator_shows_counted_steps() -> None:
    job = {"metadata": {"name": "j"}, "status": {"attempt": 1}}
    agent = {"attempt": 1, "progress": {"step": None, "optimizerSteps": 7, "time": 1000.0, "loss": None}}
    assert ProgressEstimator().apply(job, agent)["status"]["progress"]["step"] == 7


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), ("1.5m", 90), ("500ms", 0.5)])
def test_durations_are_parsed_as_kubectl_does(text: str, seconds: float) -> None:
    assert durations.parse(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "10 m", "m", "1d", "-", "-5", "nan", "inf", "1e3"])
def test_wrong_duration_names_the_flag(text: str) -> None:
    with pytest.raises(InputError, match=f"--timeout {text}"):
        durations.parse(text, "--timeout")


def test_time_left_follows_from_the_speed_of_this_attempt() -> None:
    estimator = ProgressEstimator()
    job = {"metadata": {"name": "j"}, "status": {"attempt": 1, "progress": {"step": 3, "totalSteps": 100}}}

    def left(attempt: int, time: float, step: int) -> float | None:
        agent = {"attempt": attempt, "progress": {"step": step, "totalSteps": 100, "time": time, "loss": None}}
        shown = estimator.apply({**job, "status": {**job["status"], "attempt": attempt}}, agent)
        return seconds_left(shown, datetime.fromtimestamp(time, UTC))

    assert left(1, 1000.0, 10) is None
    assert left(1, 1001.5, 40) == pytest.approx(3.0)
    assert left(2, 1010.0, 30) is None, "another attempt starts over"
    assert left(2, 1012.0, 50) == pytest.approx(5.0)
    assert estimator.apply(job, None) == job


def drawn(shown: Snapshot, events: list[str], *, height: int, width: int = 100) -> list[str]:
    """Returns the lines of the live table in a terminal of this size."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height)
    console.print(fitted(console, shown, [Text(text, overflow="fold") for text in events]))
    return stream.getvalue().splitlines()


def many(count: int, **other: str) -> list[PodRow]:
    """Returns running pods, except those whose state is given by name."""
    names = [f"digits-{ordinal}" for ordinal in range(count)]
    return [PodRow(name=name, state=other.get(name, "Running"), pid=1, workers={0: 2}, restarts=0) for name in names]


@pytest.mark.parametrize("height", [10, 18, 24])
@pytest.mark.parametrize("pods", [40, 200])
def test_excess_pods_are_folded_and_events_stay_visible(height: int, pods: int) -> None:
    rows = many(pods, **{"digits-13": "Terminating"})
    lines = drawn(Snapshot(job=snapshot().job, now=NOW, rows=rows), [f"event {n}" for n in range(8)], height=height)
    assert len(lines) <= height
    assert lines[-3:] == ["event 5", "event 6", "event 7"]
    text = "\n".join(lines)
    assert "digits-13 " in text, "pods that do not run come first"
    shown = sum(line.startswith("digits-") for line in lines)
    assert f"{pods - shown} more" in text
    assert f"{pods - shown} Running" in text


def test_few_pods_are_all_shown_with_all_events() -> None:
    lines = drawn(Snapshot(job=snapshot().job, now=NOW, rows=many(4)), [f"event {n}" for n in range(8)], height=24)
    assert sum(line.startswith("digits-") for line in lines) == 4
    assert sum(line.startswith("event") for line in lines) == 8
    assert "more" not in "\n".join(lines)


@pytest.mark.parametrize("width", [45, 80, 200])
def test_wide_rows_and_long_events_fit_the_height(width: int) -> None:
    rows = [
        PodRow(name=f"digits-{n}", state="Running", pid=1, workers={r: 24284 + r for r in range(8)}, restarts=0)
        for n in range(2)
    ]
    lines = drawn(Snapshot(job=snapshot().job, now=NOW, rows=rows), ["long " * 60] * 8, height=20, width=width)
    assert len(lines) <= 20
    assert sum(line.startswith("digits-") for line in lines) == 2


def recovering() -> Snapshot:
    return replace(snapshot(), activity="stopping the workers", activity_seconds=12.0)


def test_recovery_shows_its_phase_instead_of_stale_rates() -> None:
    for text in (line(recovering()), drawn(recovering(), [], height=24)[0]):
        assert "stopping the workers (12 s)" in text
        for old in ("loss", "samples/s", "left"):
            assert old not in text
    for text in (line(snapshot(phase="Restarting")), drawn(snapshot(phase="Restarting"), [], height=24)[0]):
        assert "Restarting" in text
        assert "samples/s" not in text


def test_plain_lines_continue_while_no_step_is_done() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    for second in range(0, 60, 5):
        job = {"metadata": {"name": "j"}, "status": {"phase": "Running", "attempt": 1}}
        moment = Snapshot(
            job=job, now=NOW.replace(second=second), rows=(), activity="no step reported yet", activity_seconds=second
        )
        view.show(moment)
    assert [text.partition(" ")[2] for text in stream.getvalue().splitlines()] == [
        f"j Running attempt 1 no step reported yet ({second} s)" for second in (0, 15, 30, 45)
    ]


RECOVERY = {
    "attempt": 2,
    "time": 100.0,
    "resumedStep": None,
    "seconds": {"detect": 1.0, "stop": 2.0, "load": 0.0, "firstStep": 0.0},
}
OLD, LOADED, TRAINED = ({"step": 120, "time": 99.0}, {"step": 100, "time": 130.0}, {"step": 101, "time": 131.0})


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (None, "starting the agents"),
        ({"phase": "Rendezvous", "phaseMessage": ""}, "waiting for all agents to join"),
        ({"phase": "Rendezvous", "phaseMessage": "waiting for j-1 (left 2 s ago)"}, "waiting for j-1 (left 2 s ago)"),
        ({"phase": "Stopping"}, "stopping the workers"),
        ({"phase": "Running", "attempt": 1, "progress": None}, "no step reported yet"),
        ({"phase": "Running", "attempt": 1, "progress": {"step": 1, "time": 5.0}}, ""),
        ({"phase": "Running", "attempt": 2, "recoveries": [RECOVERY]}, "no step reported yet"),
        (
            {"phase": "Running", "attempt": 2, "recoveries": [RECOVERY], "progress": OLD},
            "starting the workers: importing and loading",
        ),
        (
            {"phase": "Running", "attempt": 2, "recoveries": [{**RECOVERY, "resumedStep": 100}], "progress": LOADED},
            "waiting for the first step after step 100",
        ),
        ({"phase": "Running", "attempt": 2, "recoveries": [{**RECOVERY, "resumedStep": 100}], "progress": TRAINED}, ""),
        ({"phase": "Finished", "attempt": 2}, ""),
    ],
)
def test_activity_describes_the_group_while_it_does_not_train(agent: dict[str, Any] | None, text: str) -> None:
    assert activity.group_activity(agent) == text


FLAPPING = {
    "attempt": 7,
    "rank": 1,
    "pod": "j-1",
    "reason": "WorkerFailed",
    "exitCode": 1,
    "logTail": "FileNotFoundError: x.csv",
}


@pytest.mark.parametrize(
    ("phase", "shown"), [("Restarting", True), ("Running", True), ("Failed", True), ("Complete", False)]
)
def test_summary_of_an_incomplete_run_shows_the_failure(phase: str, shown: bool) -> None:
    job = {"metadata": {"name": "j"}, "status": {"phase": phase, "reason": "WorkerFailed", "failures": [FLAPPING]}}
    text = "\n".join(summary(job, seconds=3, run_dir=Path("/r"), checkpoint_dir=None))
    assert ("    | FileNotFoundError: x.csv" in text) is shown
    assert ("rank 1 in pod j-1: WorkerFailed, exit code 1" in text) is shown
    assert ("  cause        FileNotFoundError: x.csv (rank 1)" in text) is (phase == "Failed")


def test_every_recovery_phase_has_a_label() -> None:
    assert tuple(PHASES) == names.RECOVERY_PHASES
