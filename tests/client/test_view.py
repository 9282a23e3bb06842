"""What a person is shown: pure functions of the job and the pods."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dtj import durations
from dtj.errors import InputError
from dtj.local.pace import Pace
from dtj.view.model import PodRow, Sight, seconds_left
from dtj.view.plain import PlainView, line
from dtj.view.summary import summary
from dtj.view.table import render

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
STATUS: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "progress": {"step": 130, "totalSteps": 900, "loss": 0.31234, "samplesPerSecond": 5120.4, "eta": "2026-01-01T12:03:05Z"},
    "checkpoint": {"step": 100},
}


def sight(**status: Any) -> Sight:
    job = {"metadata": {"name": "digits"}, "status": {**STATUS, **status}}
    row = PodRow(name="digits-0", state="Running", pid=41, workers={0: 51, 1: 52}, restarts=3)
    return Sight(job=job, now=NOW, rows=[row])


def test_one_line_says_all() -> None:
    assert line(sight()) == "digits Running attempt 2 step 130/900 loss 0.3123 5120 samples/s 3 m 05 s left"
    assert line(Sight(job={"metadata": {"name": "digits"}}, now=NOW, rows=())) == "digits Pending"


def test_the_table_has_a_row_for_each_pod() -> None:
    stream = io.StringIO()
    Console(file=stream, width=120).print(*render(sight()))
    text = stream.getvalue()
    for word in ("digits", "Running", "attempt 2", "step 130/900", "checkpoint 100", "digits-0", "41", "0 (51)  1 (52)", "3"):
        assert word in text


def test_plain_lines_come_with_a_change_of_phase_and_every_five_seconds_of_progress() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    for second, step, attempt in ((0, 1, 1), (1, 2, 1), (6, 3, 1), (7, 3, 2), (20, 3, 2)):
        job = {"metadata": {"name": "j"}, "status": {"phase": "Running", "attempt": attempt, "progress": {"step": step}}}
        view.show(Sight(job=job, now=NOW.replace(second=second), rows=()))
    assert [text.partition(":")[2] for text in stream.getvalue().splitlines()] == [
        "00:00 j Running attempt 1 step 1",
        "00:06 j Running attempt 1 step 3",
        "00:07 j Running attempt 2 step 3",
    ]


def test_the_summary_tells_each_recovery_and_its_cost() -> None:
    recovery = {
        "attempt": 2, "kind": "InPlace", "reason": "WorkerFailed", "lastStep": 120, "resumedStep": 100, "lostSteps": 20,
        "seconds": {"detect": 0.01, "stop": 0.3, "schedule": 0.0, "rendezvous": 0.02, "load": 2.1, "firstStep": 0.2},
    }  # fmt: skip
    status = {**STATUS, "phase": "Complete", "recoveries": [recovery], "restarts": {"inPlace": 1, "pod": 0}, "goodput": 0.9}
    status["progress"] = {**STATUS["progress"], "metrics": {"lr": 0.1, "validation_accuracy": 0.9667}}
    lines = summary({"metadata": {"name": "digits"}, "status": status}, seconds=75, run_dir=Path("/r"), checkpoint_dir=Path("/c"))
    assert lines[1:] == [
        "digits: Complete after 75 s",
        "  reached      step 130/900, loss 0.3123, validation_accuracy 0.9667",
        "  attempts     2 (1 restarts in place, 0 with a new pod)",
        "  recovery     WorkerFailed (InPlace) -> attempt 2: 20 steps done again, from step 100",
        "               2.63 s: detect 0.01, stop 0.30, schedule 0.00, rendezvous 0.02, load 2.10, firstStep 0.20",
        "  goodput      90.0 % of the time went into steps that count",
        "  logs         /r/*.log; status.json beside them",
        "  checkpoints  /c (newest: step 100)",
    ]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), ("1.5m", 90), ("500ms", 0.5)])
def test_durations_are_as_kubectl_takes_them(text: str, seconds: float) -> None:
    assert durations.parse(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "10 m", "m", "1d", "-", "-5", "nan", "inf", "1e3"])
def test_a_wrong_duration_names_the_flag(text: str) -> None:
    with pytest.raises(InputError, match=f"--timeout {text}"):
        durations.parse(text, "--timeout")


def test_the_time_left_comes_from_the_speed_of_this_attempt() -> None:
    pace = Pace()
    job = {"metadata": {"name": "j"}, "status": {"attempt": 1, "progress": {"step": 3, "totalSteps": 100}}}

    def left(attempt: int, time: float, step: int) -> float | None:
        agent = {"attempt": attempt, "progress": {"step": step, "totalSteps": 100, "time": time, "loss": None}}
        shown = pace.apply({**job, "status": {**job["status"], "attempt": attempt}}, agent)
        return seconds_left(shown, datetime.fromtimestamp(time, UTC))

    assert left(1, 1000.0, 10) is None
    assert left(1, 1001.5, 40) == pytest.approx(3.0)
    assert left(2, 1010.0, 30) is None, "another attempt has another beginning"
    assert left(2, 1012.0, 50) == pytest.approx(5.0)
    assert pace.apply(job, None) == job
