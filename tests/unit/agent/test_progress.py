"""Reports of workers: whatever a script sends, the agent forwards only valid values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_agent.group import outcome
from dtj_agent.group.goodput import GoodputTracker
from dtj_agent.group.history import History
from dtj_agent.group.messages import Now
from dtj_agent.pages import metrics
from dtj_agent.workers.progress_board import ProgressBoard
from dtj_contract import worker_report

BASE = {"rank": 1, "attempt": 2}
REPORTS = {
    "a step": ({"step": 5, "loss": 0.5, "phase": "training"}, {"step": 5, "loss": 0.5, "phase": "training"}),
    "a number that is none": ({"loss": float("nan"), "samplesPerSecond": float("inf"), "step": 1}, {"step": 1}),
    "a step that is none": ({"step": "5", "totalSteps": -1, "resumedStep": True}, {}),
    "a huge whole number": ({"loss": 10**400, "step": 10**400}, {}),
    "an unknown key": ({"color": "red"}, {}),
    "an unknown phase": ({"phase": "lunch"}, {}),
    "metrics": ({"metrics": {"a": 1, "b": "x", "c": float("nan")}}, {"metrics": {"a": 1}}),
    "a checkpoint": (
        {"checkpoint": {"step": 3, "path": "p", "time": 1.5, "x": 1}},
        {"checkpoint": {"step": 3, "path": "p", "time": 1.5}},
    ),
    "a checkpoint without a step": ({"checkpoint": {"path": "p"}}, {}),
    "an event": (
        {"event": {"type": "Odd", "reason": "R", "message": "m"}},
        {"event": {"type": "Normal", "reason": "R", "message": "m"}},
    ),
    "half a surrogate pair, which no page could be encoded with": (
        {
            "metrics": {"a\ud800": 1},
            "event": {"reason": "R\ud800", "message": "\udfff"},
            "checkpoint": {"step": 3, "path": "p\ud800", "time": 1.5},
        },
        {
            "metrics": {"a?": 1},
            "event": {"type": "Normal", "reason": "R?", "message": "?"},
            "checkpoint": {"step": 3, "path": "p?", "time": 1.5},
        },
    ),
    "an event without a reason": ({"event": {"message": "m"}}, {}),
}


@pytest.mark.parametrize(("raw", "clean"), REPORTS.values(), ids=REPORTS)
def test_report_keeps_its_valid_keys(raw: dict[str, Any], clean: dict[str, Any]) -> None:
    assert worker_report.parse(json.dumps({**BASE, **raw}).encode()) == {**BASE, **clean}


@pytest.mark.parametrize("datagram", [b"", b"{", b"[]", b"5", b'{"rank": 0}', b'{"attempt": 1}', b"\xff", b"[" * 9000])
def test_invalid_report_is_dropped(datagram: bytes) -> None:
    assert worker_report.parse(datagram) is None


def test_report_keeps_at_most_32_metrics() -> None:
    report = worker_report.parse(json.dumps({**BASE, "metrics": {str(n): n for n in range(100)}}).encode())
    assert report is not None
    assert len(report["metrics"]) == 32


def test_board_has_values_of_the_lowest_rank_and_milestones_of_all() -> None:
    board = ProgressBoard(2)
    board.add({"rank": 0, "attempt": 2, "step": 7, "loss": 1.0})
    board.add({"rank": 1, "attempt": 2, "step": 9, "loss": 2.0, "checkpoint": {"step": 9, "path": "", "time": 0.0}})
    board.add({"rank": 0, "attempt": 1, "step": 99})
    summary = board.take()
    assert summary is not None
    assert (summary["rank"], summary["step"], summary["loss"], summary["checkpoint"]["step"]) == (0, 7, 1.0, 9)
    assert board.take() is None


def test_milestones_are_urgent_and_reported_once_unlike_plain_steps() -> None:
    board = ProgressBoard(1)
    seen = []
    for report in (
        {"phase": "loading"},
        {"resumedStep": 4, "phase": "training"},
        {"step": 5},
        {"step": 6},
        {"event": {"reason": "R"}},
    ):
        board.add({"rank": 0, "attempt": 1, **report})
        seen.append(board.urgent)
        summary = board.take() or {}
    assert seen == [False, True, True, False, True]
    assert "resumedStep" not in summary
    assert len(board.take_events()) == 1


def test_event_is_reported_even_after_its_attempt_has_ended() -> None:
    """A rank that loses its lease reports that as it exits; the exit of another may already have started an attempt."""
    board = ProgressBoard(1)
    board.add({"rank": 1, "attempt": 1, "event": {"reason": "A"}})
    board = ProgressBoard(2, board.take_events())
    board.add({"rank": 1, "attempt": 1, "step": 9, "event": {"reason": "B"}})
    assert board.urgent
    assert board.take() is None, "the step of another attempt is no progress"
    assert [event["reason"] for event in board.take_events()] == ["A", "B"]
    assert (board.take_events(), board.urgent) == ([], False)


def history() -> History:
    past = History()
    past.attempt, past.furthest, past.losses = 3, 5, [1.0]
    past.progress = {
        "step": 5,
        "totalSteps": None,
        "loss": 0.25,
        "samplesPerSecond": None,
        "metrics": {'a"b': 1.0},
        "time": 1.0,
    }
    past.checkpoint = {"step": 4, "path": "/c/step-00000004", "time": 2.0}
    return past


def test_training_that_resumes_at_its_end_keeps_the_last_step() -> None:
    """Its only report is that of the end: 100 %, without a step."""
    tracker = GoodputTracker(History())
    tracker.started(Now(0.0, 0.0))
    tracker.report({"rank": 0, "step": 28, "totalSteps": 30, "percent": 93, "stepped": True}, None, Now(1.0, 1.0))
    tracker.ended(Now(2.0, 2.0))
    tracker.started(Now(3.0, 3.0))
    tracker.report({"rank": 0, "percent": 100, "stepped": False}, None, Now(4.0, 4.0))
    shown = tracker.history.progress or {}
    assert (shown["step"], shown["totalSteps"], shown["percent"]) == (28, 30, 100)


def test_history_survives_json_and_missing_keys() -> None:
    past = history()
    past.event("Warning", "R", "m", 1.0)
    assert History.from_json(json.loads(json.dumps(past.to_json()))).to_json() == past.to_json()
    assert History.from_json({}).to_json() == History().to_json()


def test_history_is_bounded() -> None:
    past = History()
    for n in range(100):
        past.event("Normal", "R", "m", 0.0)
        past.failure({"attempt": n, "ordinal": 0, "reason": "WorkerFailed"})
        past.recovery({"attempt": n})
    assert (len(past.events), len(past.failures), len(past.recoveries), past.events[-1]["id"]) == (20, 5, 10, 100)


LONG = {
    "a long log": "x" * 2048,
    "a log of quotes": '"' * 2048,
    "a log of control bytes": "\x1b" * 2048,
    "a log of text": "日本語" * 680,
}


@pytest.mark.parametrize("tail", LONG.values(), ids=LONG)
def test_termination_message_fits_the_limit_by_shortening_the_log_first(tail: str) -> None:
    past = history()
    past.recoveries = [{"attempt": n, "seconds": {"load": 1.0}} for n in range(3)]
    failure = {"rank": 1, "message": "m", "logTail": tail}
    final = outcome.build("uid", outcome.FAILED, "WorkerFailed", "m", failure, past, 9.0)
    message = outcome.termination_message(final)
    assert 2500 < len(message) <= 4096
    kept = json.loads(message)
    assert tail.endswith(kept["failure"].pop("logTail"))
    failure.pop("logTail")
    assert kept == final


def test_termination_message_drops_the_stack_before_anything_else() -> None:
    failure = {"reason": "WorkerHung", "message": "m", "logTail": "end", "stack": "\n" * 4096}
    final = outcome.build("uid", "Failed", "RestartBudgetSpent", "m", failure, history(), 0.0)
    kept = json.loads(outcome.termination_message(final))
    assert kept["failure"] == {"reason": "WorkerHung", "message": "m", "logTail": "end"}
    assert kept["progress"] == final["progress"]
    assert final["failure"]["stack"], "the outcome of the file keeps it"


def test_outcome_lists_the_earlier_failures_in_short() -> None:
    past = history()
    evidence = {"reason": "WorkerFailed", "signal": None, "logTail": "x" * 2000, "stack": "y", "message": "m" * 900}
    past.failures = [{"attempt": n, "ordinal": 0, "rank": 0, "pod": "j-0", **evidence} for n in range(5)]
    final = outcome.build("uid", outcome.FAILED, "RestartBudgetSpent", "m", past.failures[-1], past, 9.0)
    kept = json.loads(outcome.termination_message(final))
    assert [failure["attempt"] for failure in kept["failures"]] == [0, 1, 2, 3]
    assert kept["failures"][0] == {
        "attempt": 0, "ordinal": 0, "rank": 0, "pod": "j-0", "reason": "WorkerFailed", "message": "m" * 200,
    }  # fmt: skip
    assert kept["failure"]["logTail"]
    succeeded = outcome.build("uid", outcome.SUCCEEDED, "AllWorkersSucceeded", "m", None, past, 9.0)
    assert len(succeeded["failures"]) == 5


def test_far_too_long_termination_message_is_still_json() -> None:
    past = history()
    past.progress = {"metrics": {str(n) * 70: 1.0 for n in range(32)}}
    final = outcome.build(
        "uid", outcome.FAILED, "WorkerFailed", "m" * 9000, {"logTail": "", "message": "m" * 9000}, past, 9.0
    )
    kept = json.loads(outcome.termination_message(final))
    assert (kept["uid"], kept["result"], kept["reason"]) == ("uid", "Failed", "WorkerFailed")


def test_metrics_are_prometheus_text() -> None:
    page = {
        "job": 'a"b', "attempt": 3, "phase": "Running", "worldSize": 4, "members": [],
        "restarts": {"inPlace": 1, "pod": 0, "counted": 1},
        "recoveries": [{"seconds": {"load": 2.5}, "lostSteps": None}], "productiveSeconds": 5.5, **history().live(),
        "stragglers": [{"rank": 3, "pod": "j-1", "node": "", "ratio": 1.6}],
    }  # fmt: skip
    lines = metrics.render({**page, "productiveSeconds": 5.5}).decode().splitlines()
    assert 'dtj_restarts_total{job="a\\"b",kind="InPlace"} 1.0' in lines
    assert 'dtj_phase{job="a\\"b",phase="Running"} 1.0' in lines
    assert 'dtj_recovery_seconds{job="a\\"b",phase="load"} 2.5' in lines
    assert 'dtj_worker_metric{job="a\\"b",name="a\\"b"} 1.0' in lines
    assert not [line for line in lines if "None" in line or "dtj_total_steps" in line]
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
