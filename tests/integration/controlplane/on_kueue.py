"""Jobs in queues of the real Kueue: queued, admitted, preempted, admitted again. `make test-long` runs these tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane import kueue
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import create_node
from tests.integration.controlplane.support import Agents, Objects, Operator, outcome, running, wait_until

pytestmark = pytest.mark.controlplane

Start = Callable[..., Operator]
JOBS = "distributedtrainingjobs"
SIZE = {"requests": {"cpu": "1500m", "memory": "1Gi"}}


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@pytest.fixture(scope="session")
def manager(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with kueue.running_manager(plane, tmp_path_factory.mktemp("kueue")):
        yield


@pytest.fixture
def start(plane: ControlPlane, namespace: str, manager: None, start_operator: Start) -> Start:
    """Starts an operator that queues jobs itself."""
    kueue.grant(plane, namespace)
    return lambda: start_operator("--kueue", "true").ready()


def test_job_is_queued_admitted_preempted_and_admitted_again(
    plane: ControlPlane,
    namespace: str,
    start: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    kueue.create_queue(plane, namespace, cpus=4)
    urgent = {"metadata": {"name": f"{namespace}-urgent"}, "value": 1000}
    plane.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    start()

    def train(name: str, attempt: int = 1, **spec: Any) -> Any:
        job = submit(name, queueName=namespace, resources=SIZE, **spec)
        agents.statuses[job["metadata"]["uid"]] = running() | {"attempt": attempt}
        return job

    def load(name: str) -> Any:
        return kueue.workload(plane, namespace, name)

    def pods(name: str) -> list[Any]:
        return [pod for pod in objects.list("pods") if pod["metadata"]["name"].startswith(f"{name}-")]

    # Admitted at once: 3 of 4 CPUs, on the nodes of the flavor.
    first = train("low")
    wait_until("the first job runs", lambda: objects.condition("low", "Running"))
    template = objects.get("statefulsets", "low")["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"pool": namespace}
    assert any(each.get("key") == "reserved" for each in template["tolerations"])
    wait_until("Kueue learns that the group trains", lambda: kueue.is_true(load("low"), "PodsReady"))
    admitted = load("low")

    # Queued: no room. Kueue's own reason is in the condition. Its order is that of creation, in whole seconds.
    wait_until("another second has begun", lambda: now() > admitted["metadata"]["creationTimestamp"])
    train("next")
    wait_until("the second job is queued", lambda: "insufficient" in str(objects.get(JOBS, "next").get("status")))
    assert objects.reason("next") == "Queued"
    assert objects.get("statefulsets", "next") is None

    # Recovery: a lost pod is replaced, and the job keeps its Workload and its quota.
    lost = pods("low")[1]
    plane.request("DELETE", objects.path("pods", lost["metadata"]["name"]))
    wait_until(
        "the pod is replaced",
        lambda: lost["metadata"]["uid"] not in {p["metadata"]["uid"] for p in pods("low")} and len(pods("low")) == 2,
    )
    assert load("low")["metadata"]["uid"] == admitted["metadata"]["uid"]
    assert load("low")["status"]["admission"] == admitted["status"]["admission"]
    assert not kueue.is_true(load("low"), "Evicted")

    # Preempted by a job of higher priority: the pods end first, then the quota goes.
    agents.statuses[first["metadata"]["uid"]] = running() | {"attempt": 3}
    wait_until("the third attempt is stored", lambda: objects.get(JOBS, "low")["status"].get("attempt") == 3)
    last = train("high", priorityClassName=f"{namespace}-urgent")
    wait_until("the job of higher priority runs", lambda: objects.condition("high", "Running"))
    assert load("high")["spec"]["priority"] == 1000
    wait_until("the first job is queued again", lambda: objects.reason("low") == "Queued")
    assert pods("low") == []
    assert objects.get("statefulsets", "low") is None
    assert kueue.is_true(load("low"), "Evicted")
    assert not kueue.is_true(load("low"), "QuotaReserved")

    # Admitted again when there is room, with its attempts above the earlier ones.
    for each in ("high-0", "high-1"):
        kubelet.container_states[each] = outcome(last, "Succeeded", "AllWorkersSucceeded")
    wait_until("the job of higher priority is complete", lambda: objects.condition("high", "Complete"))
    wait_until("its Workload is finished", lambda: kueue.is_true(load("high"), "Finished"))
    wait_until("the first job runs again", lambda: objects.condition("low", "Running"))
    [trainer] = objects.get("statefulsets", "low")["spec"]["template"]["spec"]["containers"]
    assert next(e["value"] for e in trainer["env"] if e["name"] == "DTJ_ATTEMPT_FLOOR") == "4"
    assert objects.reason("next") == "Queued", "first in, first out"

    # Suspended: the quota is free, and the next job gets it.
    objects.change(JOBS, "low", lambda job: job["spec"].update(suspend=True))
    wait_until("the second job runs", lambda: objects.condition("next", "Running"))
    assert load("low") is None


def test_topology_aware_placement_gives_neighbouring_ranks_one_rack(
    plane: ControlPlane, namespace: str, start: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    rack, pool = "example.com/rack", {"pool": namespace}
    for number in range(4):
        labels = pool | {rack: f"{namespace}-rack-{number // 2}"}
        create_node(plane, f"{namespace}-node-{number}", cpus=4, labels=labels)
    levels = {"levels": [{"nodeLabel": rack}, {"nodeLabel": "kubernetes.io/hostname"}]}
    topology = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "spec": levels}
    plane.request("POST", f"{kueue.API}/topologies", topology | {"metadata": {"name": namespace}})
    kueue.create_queue(plane, namespace, cpus=100, topology=namespace)
    start()
    preferred = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-preferred-topology": rack}}}
    submit("wide", replicas=8, queueName=namespace, resources={"requests": {"cpu": "1900m"}}, template=preferred)

    def racks() -> list[str]:
        found = sorted(objects.list("pods"), key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))
        nodes = [(pod["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname") for pod in found]
        gated = any(pod["spec"].get("schedulingGates") for pod in found)
        return [] if gated or None in nodes else [str(int(str(node).rpartition("-")[2]) // 2) for node in nodes]

    wait_until("Kueue has placed all pods", lambda: len(racks()) == 8)
    assert "".join(racks()) in ("00001111", "11110000"), "ranks of one rack are neighbours"
