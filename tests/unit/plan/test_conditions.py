"""Conditions change their transition time with their status, and determine the phase."""

from __future__ import annotations

import pytest

from dtj_core.plan import conditions
from tests.unit.plan.objects import NOW, condition

Object = dict[str, object]


def put(status: Object, kind: str, value: bool, reason: str = "R", message: str = "m", *, at: float = NOW) -> Object:
    return conditions.Conditions(generation=3, now=at).set(status, kind, value, reason, message)


def test_transition_time_changes_only_with_the_status() -> None:
    status = put({}, "Running", True)
    status = put(status, "Running", True, "Other", "other", at=NOW + 60)
    assert condition(status, "Running") == {
        "type": "Running",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-09-21T14:13:20Z",
        "reason": "Other",
        "message": "other",
    }
    status = put(status, "Running", False, at=NOW + 60)
    assert condition(status, "Running")["lastTransitionTime"] == "2026-09-21T14:14:20Z"


def test_setting_an_equal_condition_leaves_the_status_equal() -> None:
    status = put(put({}, "Running", True), "Restarting", False)
    assert put(status, "Running", True, at=NOW + 60) == status


def test_setting_a_condition_leaves_its_argument_unchanged() -> None:
    before = put({}, "Running", True)
    copy = {**before, "conditions": [dict(c) for c in before["conditions"]]}  # type: ignore[attr-defined]
    put(before, "Running", False)
    assert before == copy


def test_foreign_conditions_are_kept() -> None:
    other = {"type": "QuotaReserved", "status": "True"}
    assert condition(put({"conditions": [other]}, "Running", True), "QuotaReserved") == other


@pytest.mark.parametrize(
    ("true", "phase"),
    [
        ((), "Pending"),
        (("Running",), "Running"),
        (("Restarting",), "Restarting"),
        (("Suspended",), "Suspended"),
        (("Failed",), "Failed"),
    ],
)
def test_phase_is_the_true_condition_of_highest_precedence(true: tuple[str, ...], phase: str) -> None:
    status: Object = {}
    for kind in ("Running", "Restarting", "Suspended", "Failed"):
        status = put(status, kind, kind in true, f"Why{kind}")
    assert (status["phase"], status["reason"]) == (phase, f"Why{phase}" if true else "WhyRunning")


def test_long_message_is_truncated() -> None:
    assert len(condition(put({}, "Failed", True, message="x" * 100_000), "Failed")["message"]) == 4096
