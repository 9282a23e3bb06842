"""A node that is down, on a real API server with the real pod garbage collector.

The tests check who deletes the node's pod, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import NODES, place
from tests.integration.controlplane.support import Agents, Objects, Operator, change, wait_until

IMPATIENT = (str(Path(__file__).parent / "impatient.py"),)
# The garbage collector runs every 20 s, and waits 40 s until it considers a node gone.
GARBAGE_COLLECTOR_SECONDS = 240


@pytest.fixture
def node(objects: Objects) -> Iterator[str]:
    """Creates a Node that is not ready, and returns its name."""
    name = f"{objects.namespace}-w1"
    objects.plane.request("POST", NODES, {"metadata": {"name": name}})

    down = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
    change(objects.plane, f"{NODES}/{name}", lambda found: found["status"].update(conditions=down), "/status")
    yield name
    if any(each["metadata"]["name"] == name for each in objects.plane.request("GET", NODES)["items"]):
        objects.plane.request("DELETE", f"{NODES}/{name}")


def taint(objects: Objects, node: str) -> None:
    out_of_service = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}

    def make(found: Any) -> None:
        found["spec"].setdefault("taints", []).append(out_of_service)

    change(objects.plane, f"{NODES}/{node}", make)


def delete(objects: Objects, node: str) -> None:
    objects.plane.request("DELETE", f"{NODES}/{node}")


def allow(objects: Objects, node: str) -> None:
    objects.change("distributedtrainingjobs", "j", lambda job: job["spec"].update(forceDeletePods="Always"))


@pytest.mark.parametrize(
    ("confirm", "by_operator"),
    # The garbage collector takes a minute and a half to miss a node.
    [(taint, False), pytest.param(delete, False, marks=pytest.mark.thorough), (allow, True)],
    ids=["taint", "node deleted", "Always"],
)
def test_pod_on_a_dead_node_is_deleted_once_confirmed(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    node: str,
    confirm: Callable[[Objects, str], None],
    by_operator: bool,
) -> None:
    operator = start_operator(program=IMPATIENT).ready()
    run_job()
    uid = place(objects, "j-1", node)
    kubelet.held = {uid}
    agents.statuses.clear()  # pod 0's agent only waits for its peer
    objects.plane.request("DELETE", objects.path("pods", "j-1"), {"gracePeriodSeconds": 1})
    waits = wait_until(
        "what a person has to do is in the condition",
        lambda: (c := objects.condition("j", "Restarting")) and "out-of-service" in c["message"] and c,
        timeout=60,
    )
    assert node in waits["message"]
    assert objects.get("pods", "j-1")["metadata"]["uid"] == uid, "two pods of one name could write at once"
    confirm(objects, node)
    wait_until(
        "another pod is there",
        lambda: (new := objects.get("pods", "j-1")) and new["metadata"]["uid"] != uid,
        timeout=GARBAGE_COLLECTOR_SECONDS,
    )
    deleted = [
        call for call in operator.writes() if call["verb"] == "delete" and call["objectRef"]["resource"] == "pods"
    ]
    assert bool(deleted) is by_operator
