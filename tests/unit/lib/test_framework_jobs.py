"""The tests of frameworks read the status of a job that runs, where a field may be missing still."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.jobs import trains

STATUSES: dict[str, tuple[dict[str, Any], int, bool]] = {
    "no status yet": ({}, 1, False),
    "a first step": ({"progress": {"step": 1}}, 1, True),
    "an attempt that is still to come": ({"progress": {"step": 9}}, 2, False),
    "a recovery that has not loaded": ({"progress": {"step": 9}, "recoveries": [{"attempt": 2}]}, 2, False),
    "a recovery that has loaded": ({"progress": {"step": 9}, "recoveries": [{"resumedStep": 9}]}, 2, False),
    "a step after a recovery": ({"progress": {"step": 10}, "recoveries": [{"resumedStep": 9}]}, 2, True),
    "a second recovery that has not loaded": (
        {"progress": {"step": 10}, "recoveries": [{"resumedStep": 9}, {"attempt": 3}]}, 3, False
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "attempt", "expected"), STATUSES.values(), ids=STATUSES)
def test_attempt_trains_once_it_is_past_the_step_that_it_resumed(
    status: dict[str, Any], attempt: int, expected: bool
) -> None:
    assert trains(status, attempt) is expected
