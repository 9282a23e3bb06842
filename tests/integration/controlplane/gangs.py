"""Jobs that compete for nodes, and what is true of them under every gang scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dtj_core.plan.times import unix
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.controlplane import scheduler
from tests.integration.controlplane.conftest import install_crds
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import create_node
from tests.integration.controlplane.support import Agents, Objects, outcome, running, wait_until

Submit = Callable[..., Any]
JOBS = "distributedtrainingjobs"
# A scheduler waits up to 10 s before it tries a pod again, and up to 50 s where no event wakes the pod.
SETTLED = 180


@contextmanager
def plane_with_nodes(folder: Path) -> Iterator[ControlPlane]:
    """Starts a control plane that does not miss the kubelets of its nodes."""
    flags = {"kube-controller-manager": {"node-monitor-grace-period": "3600s"}}
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), folder, flags=flags) as plane:
        install_crds(plane)
        yield plane


@pytest.fixture
def kubelet(plane: ControlPlane, namespace: str) -> Iterator[Kubelet]:
    """Runs the pods that have a node."""
    with Kubelet(plane, namespace, schedules=False) as kubelet:
        yield kubelet


@pytest.fixture
def compete(plane: ControlPlane, namespace: str, submit: Submit) -> Submit:
    """Creates four nodes with room for one pod each, and returns what creates jobs of three pods for them."""
    for number in range(4):
        create_node(plane, f"{namespace}-node-{number}", cpus=1, labels={"pool": namespace})
    scheduler.grant(plane, namespace)

    def create(name: str, *, pod: Any = None, **spec: Any) -> Any:
        template = {"nodeSelector": {"pool": namespace}, "containers": [{"name": "trainer"}]} | (pod or {})
        size = {"requests": {"cpu": "600m"}}
        return submit(name, replicas=3, resources=size, template={"spec": template}, **spec)

    return create


def pods_of(objects: Objects, name: str) -> list[Any]:
    return [pod for pod in objects.list("pods") if pod["metadata"]["name"].startswith(f"{name}-")]


def conditions_of_pods(objects: Objects, name: str) -> list[Any]:
    return [each for pod in pods_of(objects, name) for each in pod["status"].get("conditions") or []]


def bound(objects: Objects, name: str) -> dict[str, str]:
    """Returns the nodes of a job's pods, by uid of the pod."""
    pods = pods_of(objects, name)
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}


def is_whole(objects: Objects, name: str) -> bool:
    """Returns whether all pods of a job have a node."""
    return len(bound(objects, name)) == 3


def unschedulable(objects: Objects, name: str) -> list[str]:
    """Returns what the scheduler reports of each pod of a job that it has found no node for."""
    conditions = conditions_of_pods(objects, name)
    return [str(c.get("message")) for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]


def waiting_since(objects: Objects, name: str) -> float:
    """Returns when (Unix seconds) the first pod of a job was found no node for."""
    conditions = conditions_of_pods(objects, name)
    times = [unix(c["lastTransitionTime"]) for c in conditions if c.get("reason") == "Unschedulable"]
    return min(time for time in times if time is not None)


def running_condition(objects: Objects, name: str) -> Any:
    """Returns condition Running of a job, whatever its value."""
    conditions = (objects.get(JOBS, name).get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "Running"), {})


def reports_held_nodes(objects: Objects, name: str) -> bool:
    """Returns whether a job reports that it holds nodes in vain."""
    return "hold a node" in str(running_condition(objects, name).get("message"))


def finish(kubelet: Kubelet, objects: Objects, job: Any) -> None:
    """Lets a job succeed."""
    name = job["metadata"]["name"]
    for number in range(3):
        kubelet.container_states[f"{name}-{number}"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until(f"{name} is complete", lambda: objects.condition(name, "Complete"), timeout=SETTLED)


def assert_placed_whole_or_not_at_all(
    gang: Any, compete: Submit, objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    """Lets two gangs compete for nodes of one, loses a pod of the gang that runs, and lets the other gang follow."""
    jobs = {name: compete(name, gang=gang) for name in ("first", "second")}
    for job in jobs.values():
        agents.statuses[job["metadata"]["uid"]] = running()
    running_one = wait_until(
        "one job runs",
        lambda: next((name for name in jobs if objects.condition(name, "Running")), ""),
        timeout=SETTLED,
    )
    [waiting] = set(jobs) - {running_one}
    # All pods of the other job have been tried, so none of them is bound later by chance.
    wait_until("the other job was tried", lambda: len(unschedulable(objects, waiting)) == 3, timeout=SETTLED)
    assert len(bound(objects, running_one)) == 3
    assert bound(objects, waiting) == {}
    wait_until("it is told so", lambda: running_condition(objects, waiting).get("reason") == "Unschedulable")

    # A pod is lost: its replacement gets a node, and no other pod moves.
    before = bound(objects, running_one)
    lost = next(pod for pod in objects.list("pods") if pod["metadata"]["name"] == f"{running_one}-1")
    objects.plane.request("DELETE", objects.path("pods", lost["metadata"]["name"]))
    wait_until(
        "the lost pod is placed again",
        lambda: lost["metadata"]["uid"] not in bound(objects, running_one) and len(bound(objects, running_one)) == 3,
        timeout=SETTLED,
    )
    kept = before.keys() - {lost["metadata"]["uid"]}
    assert kept == before.keys() & bound(objects, running_one).keys()
    assert bound(objects, waiting) == {}, "a free node is no reason to place a part of a gang"

    finish(kubelet, objects, jobs[running_one])
    wait_until("the other job runs", lambda: objects.condition(waiting, "Running"), timeout=SETTLED)
    assert len(bound(objects, waiting)) == 3


def assert_suspended_gang_holds_nothing(
    gang: Any, pod_groups: str, compete: Submit, objects: Objects, agents: Agents
) -> None:
    """Suspends and resumes a gang beside another. `pod_groups`: path of the PodGroups of the namespace."""
    plane = objects.plane
    for name in ("first", "second"):
        job = compete(name, gang=gang)
        agents.statuses[job["metadata"]["uid"]] = running()
        wait_until(f"{name} is whole", partial(is_whole, objects, name), timeout=SETTLED)
        objects.change(JOBS, name, lambda found: found["spec"].update(suspend=True))
        wait_until(f"{name} is suspended", partial(objects.condition, name, "Suspended"), timeout=SETTLED)
        assert bound(objects, name) == {}
    # The second job needed the nodes of the first, so its PodGroup had reserved none.
    groups = plane.request("GET", pod_groups)["items"]
    assert {each["metadata"]["name"] for each in groups} <= {"first-dtj-gang", "second-dtj-gang"}

    # Resumed, the same PodGroup serves again.
    objects.change(JOBS, "first", lambda found: found["spec"].update(suspend=False))
    wait_until("the first job runs again", lambda: objects.condition("first", "Running"), timeout=SETTLED)
    assert len(bound(objects, "first")) == 3
    plane.request("DELETE", objects.path(JOBS, "first"))

    def left() -> list[str]:
        found = plane.request("GET", pod_groups)["items"]
        return [each["metadata"]["name"] for each in found]

    wait_until("its PodGroup goes with the job", lambda: "first-dtj-gang" not in left(), timeout=SETTLED)
