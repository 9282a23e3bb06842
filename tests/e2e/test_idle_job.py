"""A job to which nothing happens causes no write to the API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.audit import operator_writes
from tests.e2e.kit import Job, is_true, wait_until

MINUTES = timedelta(minutes=5)


# Late, because most of the five minutes have passed while the other tests ran.
@pytest.mark.last(1)
def test_idle_job_causes_no_write_in_five_minutes(quiet: tuple[Job, datetime], cluster: dict[str, str]) -> None:
    job, since = quiet
    left = (since + MINUTES - datetime.now(UTC)).total_seconds()
    wait_until(
        "five minutes since it ran", lambda: datetime.now(UTC) >= since + MINUTES, timeout=max(left, 0) + 5, every=1
    )
    assert is_true(job.get(), "Running")
    # Where the other tests take half an hour, the job is reported to be silent by now: an event, and no idle write.
    assert operator_writes(cluster, job.kubectl.namespace, since, since + MINUTES) == []
