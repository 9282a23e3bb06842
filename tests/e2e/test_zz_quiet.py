"""A job about which nothing happens costs the API server nothing. Last, so that most of the five minutes are over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.e2e.audit import operator_writes
from tests.e2e.kit import Job, eventually, is_true

MINUTES = timedelta(minutes=5)


def test_five_quiet_minutes_cause_no_write(quiet: tuple[Job, datetime], cluster: dict[str, str]) -> None:
    job, since = quiet
    left = (since + MINUTES - datetime.now(UTC)).total_seconds()
    eventually("five minutes since it ran", lambda: datetime.now(UTC) >= since + MINUTES, max(left, 0) + 5, every=1)
    assert is_true(job.get(), "Running")
    assert operator_writes(cluster, job.kubectl.namespace, since) == []
