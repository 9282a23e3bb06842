"""Nodes that a detector calls sick, on a real API server: the operator reads them, and moves the pods there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from dtj_contract.operator_message import LostPod
from dtj_operator import rbac
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.nodes import place
from tests.integration.controlplane.support import (
    SERVICE_ACCOUNT,
    Agents,
    Objects,
    Operator,
    bind,
    change,
    running,
    wait_until,
)

XID = {
    "type": "XidCriticalError", "status": "True", "reason": "Xid79", "message": "GPU 0: GPU has fallen off the bus",
    "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
}  # fmt: skip


class Nodes:
    """Nodes w0, w1, … of the test, which report for as long as a test lasts."""

    def __init__(self, plane: ControlPlane, prefix: str, count: int) -> None:
        self.plane = plane
        self.names = [f"{prefix}-w{number}" for number in range(count)]
        for name in self.names:
            plane.request("POST", "/api/v1/nodes", {"metadata": {"name": name}})
            self.report(name)

    def report(self, name: str, *more: Any) -> None:
        """Writes the node's status: Ready, and what a detector adds."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}

        def make(node: Any) -> None:
            node["status"] = node.get("status", {}) | {"conditions": [ready, *more]}

        change(self.plane, f"/api/v1/nodes/{name}", make, "/status")

    def cordon(self, name: str) -> None:
        change(self.plane, f"/api/v1/nodes/{name}", lambda node: node["spec"].update(unschedulable=True))

    def close(self) -> None:
        for name in self.names:
            self.plane.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def nodes(plane: ControlPlane, namespace: str) -> Iterator[Callable[[int], Nodes]]:
    made: list[Nodes] = []

    def create(count: int) -> Nodes:
        made.append(Nodes(plane, namespace, count))
        return made[-1]

    yield create
    for each in made:
        each.close()


def may_read_nodes(plane: ControlPlane, namespace: str) -> None:
    bind(plane, None, f"{namespace}-nodes", rbac.rules(rbac.NODE_RULES), (namespace, SERVICE_ACCOUNT))


def moved(objects: Objects, pod: str, uid: str) -> Any:
    found = objects.get("pods", pod)
    return found and found["metadata"]["uid"] != uid and found


def received(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()


def status_of(objects: Objects, name: str = "j") -> Any:
    return objects.get("distributedtrainingjobs", name)["status"]


def test_pod_leaves_a_node_with_an_xid_error_within_seconds_and_nothing_else_changes(
    plane: ControlPlane,
    namespace: str,
    nodes: Callable[[int], Nodes],
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    agents: Agents,
) -> None:
    cluster = nodes(3)
    may_read_nodes(plane, namespace)
    operator = start_operator("--sick-nodes", "{}").ready()
    uid = run_job()["metadata"]["uid"]
    healthy, suspect = place(objects, "j-0", cluster.names[0]), place(objects, "j-1", cluster.names[1])
    before = status_of(objects)
    began = time.time()
    cluster.report(cluster.names[1], XID)
    new = wait_until("pod j-1 is recreated", lambda: moved(objects, "j-1", suspect), timeout=60)
    deletion = next(e for e in operator.writes() if (e["verb"], e["objectRef"]["resource"]) == ("delete", "pods"))
    print(f"\ncondition -> deletion of the pod: {received(deletion) - began:.2f} s")
    assert received(deletion) - began < 5.0
    excluded = json.dumps(new["spec"]["affinity"]["nodeAffinity"])
    assert f'"NotIn", "values": ["{cluster.names[1]}"]' in excluded
    [entry] = status_of(objects)["avoidedNodes"]
    assert (entry["node"], entry["reason"], entry["pods"]) == (cluster.names[1], "NodeSick", 1)
    assert entry["message"] == "condition XidCriticalError is True (Xid79): GPU 0: GPU has fallen off the bus"
    [event] = wait_until("an event", lambda: [e for e in objects.list("events") if e["reason"] == "NodeSick"])
    assert f"node {cluster.names[1]} is sick: {entry['message']}" in event["note"]
    place(objects, "j-1", cluster.names[2])
    agents.statuses[uid] = running(attempt=2)
    wait_until("the next attempt runs", lambda: status_of(objects).get("attempt") == 2)
    assert objects.get("pods", "j-0")["metadata"]["uid"] == healthy, "the healthy pod is not touched"
    assert status_of(objects)["restarts"]["counted"] == before["restarts"]["counted"] == 0
    deletes = [e["objectRef"]["name"] for e in operator.writes() if e["verb"] == "delete"]
    assert deletes == ["j-1"]


def test_agents_hear_that_the_pod_was_deleted_so_that_nothing_is_counted(
    plane: ControlPlane,
    namespace: str,
    nodes: Callable[[int], Nodes],
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    agents: Agents,
    kubelet: Any,
) -> None:
    cluster = nodes(3)
    may_read_nodes(plane, namespace)
    start_operator("--sick-nodes", "{}").ready()
    uid = run_job()["metadata"]["uid"]
    suspect = place(objects, "j-1", cluster.names[1])
    kubelet.held.add(suspect)  # the ranks save
    cluster.report(cluster.names[1], XID)
    wait_until("the pod terminates", lambda: "deletionTimestamp" in objects.get("pods", "j-1")["metadata"])
    pod = objects.get("pods", "j-1")
    own_grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert pod["metadata"]["deletionGracePeriodSeconds"] == own_grace > 1, "the ranks have the time that they asked for"
    agents.statuses[uid] = running(phase="Rendezvous", phaseReason="PodLost")
    condition = wait_until("the job restarts", lambda: objects.condition("j", "Restarting"))
    assert condition["reason"] == "NodeSick"
    assert "GPU has fallen off the bus" in condition["message"]

    def handed_over() -> LostPod | None:
        return next((pod for pod in agents.handed_over.lost_pods if pod.pod == "j-1"), None)

    lost = wait_until("the agents hear of it", handed_over)
    assert (lost.reason, lost.own_fault) == ("PodDeleted", False), "which the restart policy never counts"


def test_cordoned_node_is_left_too(
    plane: ControlPlane,
    namespace: str,
    nodes: Callable[[int], Nodes],
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
) -> None:
    cluster = nodes(3)
    may_read_nodes(plane, namespace)
    start_operator("--sick-nodes", "{}").ready()
    run_job()
    uid = place(objects, "j-0", cluster.names[0])
    cluster.cordon(cluster.names[0])
    wait_until("pod j-0 is recreated", lambda: moved(objects, "j-0", uid), timeout=60)
    [event] = wait_until("an event", lambda: [e for e in objects.list("events") if e["reason"] == "NodeSick"])
    assert f"node {cluster.names[0]} is sick: it is cordoned" in event["note"]


def test_detector_that_calls_all_nodes_sick_moves_nothing_and_metrics_show_it(
    plane: ControlPlane,
    namespace: str,
    nodes: Callable[[int], Nodes],
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
) -> None:
    cluster = nodes(6)
    may_read_nodes(plane, namespace)
    # All of them before the operator starts: it would believe the first two.
    for name in cluster.names:
        cluster.report(name, XID)
    operator = start_operator("--sick-nodes", '{"intervalSeconds": 1}').ready()
    run_job()
    uids = [place(objects, f"j-{n}", cluster.names[n]) for n in (0, 1)]

    def doubted() -> bool:
        return 'dtj_sick_nodes{believed="false"} 6.0' in operator.get("/metrics")[1]

    wait_until("all of them are doubted", doubted)
    time.sleep(3)
    assert [objects.get("pods", f"j-{n}")["metadata"]["uid"] for n in (0, 1)] == uids
    assert [e for e in operator.writes() if e["verb"] == "delete"] == []
    cluster.report(cluster.names[5])
    for name in cluster.names[2:5]:
        cluster.report(name)
    wait_until("two of six are believed", lambda: moved(objects, "j-0", uids[0]), timeout=60)
    wait_until("and left in one move", lambda: moved(objects, "j-1", uids[1]), timeout=60)


def test_jobs_leave_two_nodes_one_after_the_other_by_one_watch(
    plane: ControlPlane,
    namespace: str,
    nodes: Callable[[int], Nodes],
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
) -> None:
    cluster = nodes(10)
    may_read_nodes(plane, namespace)
    operator = start_operator("--sick-nodes", '{"intervalSeconds": 4}').ready()
    uids = {}
    for place_of, name in enumerate(("a", "b", "c")):
        run_job(name, replicas=1)
        uids[name] = place(objects, f"{name}-0", cluster.names[place_of])
    for name in cluster.names[:2]:
        cluster.report(name, XID)
    for name in ("a", "b"):
        wait_until(f"job {name} moves", lambda name=name: moved(objects, f"{name}-0", uids[name]), timeout=60)
    deletions = {e["objectRef"]["name"]: received(e) for e in operator.writes() if e["verb"] == "delete"}
    assert deletions.keys() == {"a-0", "b-0"}
    assert abs(deletions["a-0"] - deletions["b-0"]) > 2.5, "one after the other"
    assert objects.get("pods", "c-0")["metadata"]["uid"] == uids["c"]
    reads = [e["verb"] for e in operator.calls() if e["objectRef"]["resource"] == "nodes"]
    assert (reads.count("list"), reads.count("watch"), len(reads)) == (1, 1, 2), "for three jobs"


def test_operator_without_the_right_to_read_nodes_serves_jobs(
    start_operator: Callable[..., Operator], run_job: Callable[..., Any], objects: Objects
) -> None:
    operator = start_operator("--sick-nodes", "{}").ready()
    run_job()
    assert objects.condition("j", "Running")
    assert any("nodes could not be listed" in line["message"] for line in operator.lines())
