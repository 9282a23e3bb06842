"""Spares and elastic jobs on a real API server: CEL, kubectl scale, and the StatefulSet's own controller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtj_contract.operator_message import GroupSize
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, agent_address, wait_until
from tests.integration.controlplane.test_api import Kubectl
from tests.integration.controlplane.test_life import running

ELASTIC = {"minReplicas": 1, "maxReplicas": 4}


@pytest.fixture
def kubectl(objects: Objects, tmp_path: Path) -> Kubectl:
    return Kubectl(objects.plane, objects.namespace, tmp_path)


def members(*ordinals: int) -> list[Any]:
    return [{"ordinal": n, "pod": f"j-{n}", "address": agent_address(), "state": "running"} for n in ordinals]


def names_of(objects: Objects) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in objects.list("pods"))


def status(objects: Objects, *fields: str) -> tuple[Any, ...]:
    found = objects.get("distributedtrainingjobs", "j").get("status", {})
    return tuple(found.get(field) for field in fields)


def test_scaled_job_gets_its_pods_and_loses_them_once_they_do_not_work(
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    kubectl: Kubectl,
) -> None:
    start_operator().ready()
    uid = submit(elastic=ELASTIC)["metadata"]["uid"]
    agents.statuses[uid] = running(replicas=2, members=members(0, 1))
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in objects.list("pods")}
    template = objects.get("statefulsets", "j")["spec"]["template"]

    done = kubectl("scale", "dtj/j", "--replicas=3")
    assert done.returncode == 0, done.stderr
    wait_until("the third pod exists", lambda: names_of(objects) == ["j-0", "j-1", "j-2"])
    wait_until("the agents get the size", lambda: agents.handed_over.size == GroupSize(2, 3))
    assert objects.get("statefulsets", "j")["spec"]["template"] == template
    agents.statuses[uid] = running(attempt=2, replicas=3, members=members(0, 1, 2))
    wait_until("the new size is reported", lambda: status(objects, "replicas") == (3,))
    scale = objects.plane.request("GET", objects.path("distributedtrainingjobs", "j") + "/scale")
    assert (scale["spec"], scale["status"]["replicas"]) == ({"replicas": 3}, 3)
    assert scale["status"]["selector"] == "training.dtj.dev/job-name=j"

    assert kubectl("scale", "dtj/j", "--replicas=2").returncode == 0
    wait_until("the agents get the size", lambda: agents.handed_over.size == GroupSize(3, 2))
    assert objects.get("statefulsets", "j")["spec"]["replicas"] == 3, "pod j-2 still works"
    agents.statuses[uid] = running(attempt=3, replicas=2, members=members(0, 1))
    wait_until("the third pod is gone", lambda: names_of(objects) == ["j-0", "j-1"])
    wait_until("the size is reported", lambda: status(objects, "replicas", "shrinkTime") == (2, None))
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in objects.list("pods")} == before
    wait_until("the job still runs", lambda: objects.condition("j", "Running"))


def test_scale_beyond_the_limits_or_without_elastic_is_rejected_with_the_field(kubectl: Kubectl) -> None:
    body: Any = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "j"},
        "spec": {"replicas": 2, "image": "i", "entrypoint": {"module": "m"}, "elastic": ELASTIC},
    }
    assert kubectl.apply(body).returncode == 0
    beyond = kubectl("scale", "dtj/j", "--replicas=5")
    assert beyond.returncode == 1
    assert "spec.replicas: Invalid value" in beyond.stderr
    assert "elastic.maxReplicas" in beyond.stderr
    below = kubectl("scale", "dtj/j", "--replicas=0")
    assert below.returncode == 1
    assert "spec.replicas" in below.stderr
    assert kubectl("scale", "dtj/j", "--replicas=4").returncode == 0
    body["metadata"]["name"] = "k"
    del body["spec"]["elastic"]
    assert kubectl.apply(body).returncode == 0
    rigid = kubectl("scale", "dtj/k", "--replicas=3")
    assert rigid.returncode == 1
    assert "replicas can't change while the job runs unless the job is elastic" in rigid.stderr


def test_spare_over_quota_is_reported_and_stops_nothing(
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    quota = {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}}
    objects.plane.request("POST", objects.path("resourcequotas"), quota)
    wait_until("the quota is counted", lambda: objects.get("resourcequotas", "two").get("status", {}).get("used"))
    start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    agents.statuses[submit(spares=1)["metadata"]["uid"]] = running()
    condition = wait_until("the job runs", lambda: objects.condition("j", "Running"))
    assert condition["message"] == "attempt 1 is running 2 ranks on 2 pods; 0 of 1 spare ready"
    assert objects.get("statefulsets", "j")["spec"]["replicas"] == 3
