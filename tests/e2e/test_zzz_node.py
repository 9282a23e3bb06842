"""A node loses power and comes back. Last of all: it disturbs whatever else runs there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.e2e.kit import Job, Kubectl, docker, eventually, is_true
from tests.e2e.test_recovery import assert_resumed


def test_stopped_and_restarted_worker_node_lets_the_group_resume(
    make_job: Callable[..., Job], undisturbed: Job, operator: Kubectl
) -> None:
    """The survivors wait in place, the status reports it, and the group re-forms with the node."""
    job = make_job().create()
    job.until_step(50)
    (manager,) = operator.list("pods", "app.kubernetes.io/name=dtj-operator")
    nodes = {p["spec"]["nodeName"] for p in job.pods().values()}
    node = next(n for n in nodes if n != manager["spec"]["nodeName"])
    docker("stop", "-t", "0", node)
    try:
        noticed = eventually("the status reports the restart", lambda: is_true(j := job.get(), "Restarting") and j, 120)
        print("\n", [c for c in noticed["status"]["conditions"] if c["type"] == "Restarting"])
    finally:
        docker("start", node)
        subprocess.run([sys.executable, "-m", "hack.cluster", "heal-network"], check=True, timeout=120)
    job.wait("Complete", 240)
    assert_resumed(job, undisturbed, 2)
