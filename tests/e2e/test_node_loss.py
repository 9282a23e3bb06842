"""Nodes lose power and come back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.kit import Job, Kubectl, Object, docker, is_true, leader, wait_until
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
        start(node)
    job.wait("Complete", 240)
    assert_resumed(job, undisturbed, 2)


@pytest.mark.thorough
@pytest.mark.last(3)
def test_two_of_three_nodes_that_stop_at_once_cost_one_attempt(
    make_job: Callable[..., Job], undisturbed: Job, operator: Kubectl
) -> None:
    """The third node is that of the control plane, where no pod of the job or the operator may run."""
    job = make_job().create()
    job.until_step(50)
    nodes = {p["spec"]["nodeName"] for p in job.pods().values()}
    assert len(nodes) == 2
    assert leader(operator)["spec"]["nodeName"] in nodes
    before = job.get()["status"]["attempt"]
    docker("stop", "-t", "0", *nodes)
    try:
        wait_until(
            "both nodes are lost", lambda: all(not is_ready(operator.get("node", n)) for n in nodes), timeout=120
        )
    finally:
        start(*nodes)
    status = job.wait("Complete", 240)["status"]
    assert_resumed(job, undisturbed, 2)
    assert status["attempt"] == before + 1, status["recoveries"]


def start(*nodes: str) -> None:
    """Starts stopped nodes again, with the addresses that they had."""
    docker("start", *nodes)
    subprocess.run([sys.executable, "-m", "hack.cluster", "heal-network"], check=True, timeout=120)


def is_ready(node: Object | None) -> bool:
    conditions = node["status"]["conditions"] if node else []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
