"""A node loses power and comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.kit import Job, Kubectl, docker, is_true, leader, wait_until
from tests.e2e.test_recovery import assert_resumed


# At the very end, because a stopped node disturbs the pods of every other test.
@pytest.mark.last(2)
def test_job_survives_a_worker_node_that_stops_and_starts(
    make_job: Callable[..., Job], undisturbed: Job, operator: Kubectl
) -> None:
    """The survivors wait in place, a condition reports it, and the group forms again when the node is back."""
    job = make_job().create()
    job.until_step(50)
    manager = leader(operator)
    nodes = {p["spec"]["nodeName"] for p in job.pods().values()}
    node = next(n for n in nodes if n != manager["spec"]["nodeName"])
    docker("stop", "-t", "0", node)
    try:
        noticed = wait_until(
            "the condition Restarting", lambda: is_true(j := job.get(), "Restarting") and j, timeout=120
        )
        print("\n", [c for c in noticed["status"]["conditions"] if c["type"] == "Restarting"])
    finally:
        docker("start", node)
        subprocess.run([sys.executable, "-m", "hack.cluster", "heal-network"], check=True, timeout=120)
    job.wait("Complete", 240)
    assert_resumed(job, undisturbed, 2)
