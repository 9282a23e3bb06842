"""The benchmark of false alarms: which pauses a run has, and what counts as an alarm."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.pauses import plan, results
from benchmarks.recovery import logbook


def test_half_an_hour_has_seven_validations_three_writes_and_a_compilation() -> None:
    found = plan.pauses(30, random.Random(1))
    assert [one.kind for one in found].count(plan.VALIDATE) == 7
    assert [one.kind for one in found].count(plan.WRITE) == 3
    assert found[0].kind == plan.COMPILE
    assert 60 <= found[0].seconds <= 100


def test_pauses_neither_overlap_nor_outlast_the_run() -> None:
    found = plan.pauses(120, random.Random(1))[1:]
    assert all(a.at + a.seconds <= b.at for a, b in pairwise(found))
    assert found[-1].at + found[-1].seconds <= 7200


@pytest.mark.parametrize(
    ("status", "printed", "alarms"),
    [
        ({"attempt": 1}, "20:00:00 Running: 4 ranks", (0, 0, 0)),
        ({"attempt": 1, "failures": [{"reason": "WorkerHung"}]}, "", (1, 0, 0)),
        ({"attempt": 2}, "", (0, 1, 0)),
        ({"attempt": 1}, "20:00:00 WorkerHung: rank 1 stands still", (0, 0, 1)),
        ({"attempt": 1}, "20:00:00 NoSignOfLife: for 1800 s", (0, 0, 1)),
    ],
)
def test_failure_restart_and_event_of_a_hang_are_alarms(
    status: dict[str, Any], printed: str, alarms: tuple[int, int, int]
) -> None:
    assert tuple(plan.alarms(status, printed).values()) == alarms


def run(**more: Any) -> dict[str, Any]:
    calm = {"seconds": 1900.0, "minutes": 30.0, "pauses": {"compile": 1}, "steps": 9000, "failures": 0, "restarts": 0}
    return {"arm": "dtj", "trial": 0, "events": 0, **calm, **more}


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ({}, "| 0 | 0: met |"),
        ({"restarts": 2}, "| 2 restarts | 0: missed |"),
        ({"seconds": None}, "| 0 | 0: missed |"),
    ],
)
def test_run_meets_its_target_if_it_trains_to_its_end_without_an_alarm(more: dict[str, Any], cell: str) -> None:
    assert cell in results.render("here", [run(**more)])


def test_pause_in_the_log_of_a_process_is_no_step() -> None:
    text = "begin 1.0 0 0 4 100\npause 61.0 compile 60.0\nstep 62.0 1\n"
    assert logbook.parse(text)[0].steps == [(62.0, 1)]
