"""Workloads of jobs in a queue, on the CRDs of the real Kueue. The test sets the conditions that Kueue would set.

on_kueue.py runs the real Kueue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane import kueue
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import place
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until

Start = Callable[..., Operator]
JOBS = "distributedtrainingjobs"
TIME = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="session")
def crds(plane: ControlPlane) -> None:
    """Installs Kueue's CRDs after an operator has seen that they are missing."""
    kueue.install_crds(plane)


def set_status(plane: ControlPlane, namespace: str, name: str, admission: Any, **conditions: tuple[bool, str]) -> None:
    """Writes conditions of a Workload as Kueue does, each as its value and its reason."""
    path = f"{kueue.API}/namespaces/{namespace}/workloads/{name}"
    found = plane.request("GET", path)
    known = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or []}
    for kind, (value, reason) in conditions.items():
        text = "True" if value else "False"
        known[kind] = {"type": kind, "status": text, "reason": reason, "message": "m", "lastTransitionTime": TIME}
    status = (found.get("status") or {}) | {"conditions": list(known.values())}
    if admission is not None:
        status["admission"] = admission
    plane.request("PUT", path + "/status", found | {"status": status})


def test_quota_is_kept_by_the_job_and_given_back_after_its_last_pod(
    plane: ControlPlane,
    namespace: str,
    crds: None,
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    kueue.grant(plane, namespace)
    kueue.create_queue(plane, namespace, cpus=4)
    start_operator("--kueue", "true").ready()
    job = submit(queueName=namespace, resources={"requests": {"cpu": "1"}})
    agents.statuses[job["metadata"]["uid"]] = running()
    load = wait_until("the Workload exists", lambda: kueue.workload(plane, namespace, "j"))
    assert load["spec"]["priority"] == 0
    wait_until("the job is queued", lambda: objects.reason("j") == "Queued")
    assert objects.get("statefulsets", "j") is None

    flavors = {"cpu": namespace, "memory": namespace}
    admission = {"clusterQueue": namespace, "podSetAssignments": [{"name": "main", "count": 2, "flavors": flavors}]}
    set_status(plane, namespace, "j", admission, QuotaReserved=(True, "QuotaReserved"), Admitted=(True, "Admitted"))
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    template = objects.get("statefulsets", "j")["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"pool": namespace}

    def load_now() -> Any:
        return kueue.workload(plane, namespace, "j")

    wait_until("the group is reported ready", lambda: kueue.is_true(load_now(), "PodsReady"))

    kubelet.held |= {place(objects, pod, "w1") for pod in ("j-0", "j-1")}
    set_status(plane, namespace, "j", None, Evicted=(True, "Preempted"))
    wait_until(
        "both pods terminate",
        lambda: ["deletionTimestamp" in p["metadata"] for p in objects.list("pods")] == [True] * 2,
    )
    wait_until("the status names the eviction", lambda: objects.reason("j") == "EvictedByQueue")
    assert kueue.is_true(load_now(), "QuotaReserved"), "pods that terminate still use the quota"
    kubelet.held.clear()
    wait_until("the quota is given back", lambda: not kueue.is_true(load_now(), "QuotaReserved"))
    assert "admission" not in load_now()["status"]
    assert kueue.is_true(load_now(), "Requeued")
    wait_until("the job is queued again", lambda: objects.reason("j") == "Queued")

    objects.change(JOBS, "j", lambda changed: changed["spec"].update(suspend=True))
    wait_until("the Workload is deleted", lambda: load_now() is None)


def test_workload_of_somebody_else_is_named_and_left_alone(
    plane: ControlPlane,
    namespace: str,
    crds: None,
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
) -> None:
    kueue.grant(plane, namespace)
    container = {"name": "c", "image": "i"}
    pods = {"name": "main", "count": 1, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    metadata, spec = {"name": "j"}, {"queueName": "another", "podSets": [pods]}
    foreign = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "spec": spec}
    path = f"{kueue.API}/namespaces/{namespace}/workloads"
    uid = plane.request("POST", path, foreign)["metadata"]["uid"]
    start_operator("--kueue", "true").ready()
    submit(queueName=namespace)
    # No watch of the operator shows it: it has none of its labels.
    wait_until("the job names it", lambda: objects.reason("j") == "ChildConflict")
    found = kueue.workload(plane, namespace, "j")
    assert found is not None
    assert found["metadata"]["uid"] == uid
    plane.request("DELETE", f"{path}/j")
    wait_until("the job is queued", lambda: objects.reason("j") == "Queued")
