"""A condition's transition time is the time of its transition, and the phase follows from the conditions."""

from __future__ import annotations

import pytest

from dtj_core.plan import conditions
from tests.unit.plan.build import NOW, condition

Object = dict[str, object]


def put(status: Object, kind: str, value: bool, reason: str = "R", message: str = "m", *, at: float = NOW) -> Object:
    return conditions.Conditions(generation=3, now=at).set(status, kind, value, reason, message)


def test_the_transition_time_changes_with_the_status_alone() -> None:
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


def test_the_same_condition_again_gives_an_equal_status() -> None:
    status = put(put({}, "Running", True), "Restarting", False)
    assert put(status, "Running", True, at=NOW + 60) == status


def test_the_given_status_is_not_changed() -> None:
    before = put({}, "Running", True)
    copy = {**before, "conditions": [dict(c) for c in before["conditions"]]}  # type: ignore[attr-defined]
    put(before, "Running", False)
    assert before == copy


def test_conditions_of_others_are_kept() -> None:
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
def test_the_phase_is_the_condition_that_is_true(true: tuple[str, ...], phase: str) -> None:
    status: Object = {}
    for kind in ("Running", "Restarting", "Suspended", "Failed"):
        status = put(status, kind, kind in true, f"Why{kind}")
    assert (status["phase"], status["reason"]) == (phase, f"Why{phase}" if true else "WhyRunning")


def test_a_message_has_an_end() -> None:
    assert len(condition(put({}, "Failed", True, message="x" * 100_000), "Failed")["message"]) == 4096
