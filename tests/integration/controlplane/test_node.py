"""A node that is down, on a real API server with the real pod garbage collector.

The tests check who deletes the node's pod, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.controlplane.support import Agents, Kubelet, Objects, Operator, wait_until

IMPATIENT = (str(Path(__file__).parent / "impatient.py"),)
NODES = "/api/v1/nodes"
# The garbage collector runs every 20 s, and waits 40 s until it considers a node gone.
GARBAGE_COLLECTOR_SECONDS = 240


@pytest.fixture
def node(objects: Objects) -> Iterator[str]:
    """Creates a Node that is not ready, and returns its name."""
    name = f"{objects.namespace}-w1"
    objects.plane.request("POST", NODES, {"metadata": {"name": name}})

    def is_down() -> bool:  # the node controllers write it, too
        found = objects.plane.request("GET", f"{NODES}/{name}")
        found["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]
        objects.plane.request("PUT", f"{NODES}/{name}/status", found)
        return True

    wait_until("the node is marked as not ready", is_down)
    yield name
    if any(each["metadata"]["name"] == name for each in objects.plane.request("GET", NODES)["items"]):
        objects.plane.request("DELETE", f"{NODES}/{name}")


def taint(objects: Objects, node: str) -> None:
    def tainted() -> bool:
        found = objects.plane.request("GET", f"{NODES}/{node}")
        taints = [*found["spec"].get("taints", []), {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
        objects.plane.request("PUT", f"{NODES}/{node}", found | {"spec": found["spec"] | {"taints": taints}})
        return True

    wait_until("the node is tainted", tainted)


def delete(objects: Objects, node: str) -> None:
    objects.plane.request("DELETE", f"{NODES}/{node}")


def allow(objects: Objects, node: str) -> None:
    def allowed() -> bool:
        job = objects.get("distributedtrainingjobs", "j")
        job["spec"]["forceDeletePods"] = "Always"
        objects.plane.request("PUT", objects.path("distributedtrainingjobs", "j"), job)
        return True

    wait_until("the schema allows the change", allowed)


@pytest.mark.parametrize(
    ("confirm", "by_operator"),
    [(taint, False), (delete, False), (allow, True)],
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
    pod = objects.get("pods", "j-1")
    kubelet.held = {pod["metadata"]["uid"]}
    objects.plane.request(
        "POST",
        objects.path("pods", "j-1") + "/binding",
        {"metadata": {"name": "j-1"}, "target": {"kind": "Node", "name": node}},
    )
    agents.statuses.clear()  # pod 0's agent only waits for its peer
    objects.plane.request("DELETE", objects.path("pods", "j-1"), {"gracePeriodSeconds": 1})
    waits = wait_until(
        "what a person has to do is in the condition",
        lambda: (c := objects.condition("j", "Restarting")) and "out-of-service" in c["message"] and c,
        timeout=60,
    )
    assert node in waits["message"]
    assert objects.get("pods", "j-1")["metadata"]["uid"] == pod["metadata"]["uid"], (
        "two pods of one name could write at once"
    )
    confirm(objects, node)
    wait_until(
        "another pod is there",
        lambda: (new := objects.get("pods", "j-1")) and new["metadata"]["uid"] != pod["metadata"]["uid"],
        timeout=GARBAGE_COLLECTOR_SECONDS,
    )
    deleted = [
        call for call in operator.writes() if call["verb"] == "delete" and call["objectRef"]["resource"] == "pods"
    ]
    assert bool(deleted) is by_operator
