"""Jobs that compete for nodes, with real schedulers on nodes without machines. `make test-long` runs these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dtj_core.plan import half_placed
from dtj_core.plan.times import unix
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.controlplane import scheduler
from tests.integration.controlplane.conftest import install_crds
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import create_node
from tests.integration.controlplane.support import Agents, Objects, Operator, change, outcome, running, wait_until

pytestmark = pytest.mark.controlplane

Start = Callable[..., Operator]
Submit = Callable[..., Any]
JOBS = "distributedtrainingjobs"
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1"
GANG = {"podGroup": "SchedulerPlugins"}
# A scheduler waits up to 10 s before it tries a pod again, and up to 50 s where no event wakes the pod.
SETTLED = 180


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Returns a control plane that does not miss the kubelets of its nodes."""
    flags = {"kube-controller-manager": {"node-monitor-grace-period": "3600s"}}
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), tmp_path_factory.mktemp("plane"), flags=flags) as plane:
        install_crds(plane)
        scheduler.install_pod_groups(plane)
        yield plane


@pytest.fixture(scope="module")
def gangs(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("coscheduling")
    with scheduler.running_scheduler(plane, "coscheduling", scheduler.COSCHEDULING, folder):
        yield


@pytest.fixture
def kubelet(plane: ControlPlane, namespace: str) -> Iterator[Kubelet]:
    """Runs the pods that have a node."""
    with Kubelet(plane, namespace, schedules=False) as kubelet:
        yield kubelet


@pytest.fixture
def nodes(plane: ControlPlane, namespace: str) -> None:
    """Creates the four nodes of this namespace, with room for one pod each."""
    for number in range(4):
        create_node(plane, f"{namespace}-node-{number}", cpus=1, labels={"pool": namespace})


@pytest.fixture
def compete(plane: ControlPlane, namespace: str, nodes: None, submit: Submit) -> Submit:
    """Creates jobs of three pods, each of which needs a node of this namespace for itself."""
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


def test_gang_is_placed_whole_or_not_at_all(
    gangs: None,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator().ready()
    jobs = {name: compete(name, gang=GANG) for name in ("first", "second")}
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


def test_suspended_gang_holds_nothing(
    gangs: None,
    plane: ControlPlane,
    namespace: str,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator().ready()
    for name in ("first", "second"):
        job = compete(name, gang=GANG)
        agents.statuses[job["metadata"]["uid"]] = running()
        wait_until(f"{name} is whole", partial(is_whole, objects, name), timeout=SETTLED)
        objects.change(JOBS, name, lambda found: found["spec"].update(suspend=True))
        wait_until(f"{name} is suspended", partial(objects.condition, name, "Suspended"), timeout=SETTLED)
        assert bound(objects, name) == {}
    # The second job needed the nodes of the first, so its PodGroup had reserved none.
    groups = plane.request("GET", f"{POD_GROUPS}/namespaces/{namespace}/podgroups")["items"]
    assert {each["metadata"]["name"] for each in groups} <= {"first-dtj-gang", "second-dtj-gang"}

    # Resumed, the same PodGroup serves again.
    objects.change(JOBS, "first", lambda found: found["spec"].update(suspend=False))
    wait_until("the first job runs again", lambda: objects.condition("first", "Running"), timeout=SETTLED)
    assert len(bound(objects, "first")) == 3
    plane.request("DELETE", objects.path(JOBS, "first"))

    def left() -> list[str]:
        found = plane.request("GET", f"{POD_GROUPS}/namespaces/{namespace}/podgroups")["items"]
        return [each["metadata"]["name"] for each in found]

    wait_until("its PodGroup goes with the job", lambda: "first-dtj-gang" not in left(), timeout=SETTLED)


def test_missing_gang_scheduler_is_named(start_operator: Start, compete: Submit, objects: Objects) -> None:
    start_operator().ready()
    compete("alone", gang=GANG | {"schedulerName": "nobody"})
    compete("unserved", gang={"podGroup": "Volcano"})

    # No CRD of Volcano is installed.
    refused = wait_until(
        "the missing kind is named",
        lambda: (found := running_condition(objects, "unserved")).get("reason") == "ChildRefused" and found,
    )
    assert "PodGroup" in refused["message"]
    assert objects.get("statefulsets", "unserved") is None
    silent = wait_until(
        "the missing scheduler is named",
        lambda: (found := running_condition(objects, "alone")).get("reason") == "Unschedulable" and found,
        timeout=SETTLED,
    )
    assert "scheduler nobody has not looked at it" in silent["message"]


GATE = "dtj.test/hold"
HALF_PLACED_SECONDS = 20
GATHERING = running() | {"phase": "Rendezvous", "phaseReason": "Rendezvous"}


def open_gates(plane: ControlPlane, objects: Objects, names: list[str] | None = None) -> None:
    """Lets the scheduler see these pods; None: all."""

    def remove(pod: Any) -> None:
        pod["spec"].pop("schedulingGates", None)

    for pod in objects.list("pods"):
        name = pod["metadata"]["name"]
        if pod["spec"].get("schedulingGates") and (names is None or name in names):
            with suppress(ProvisionError):
                change(plane, objects.path("pods", name), remove)


def test_one_of_two_half_placed_jobs_starts(
    plane: ControlPlane,
    tmp_path: Path,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    limit = HALF_PLACED_SECONDS
    gated = {"schedulingGates": [{"name": GATE}]}
    jobs: dict[str, Any] = {}

    def hold(name: str) -> float:
        return half_placed.fraction(jobs[name]["metadata"]["uid"], 0, "hold")

    # Jobs whose times to let go differ by much, so that a busy machine does not blur them.
    jobs["left"] = compete("left", halfPlacedSeconds=limit, pod=gated)
    for number in range(50):
        jobs["right"] = compete("right", halfPlacedSeconds=limit, pod=gated)
        if abs(hold("left") - hold("right")) > 0.45 or number == 49:
            break
        plane.request("DELETE", objects.path(JOBS, "right"))
    patient, hasty = sorted(jobs, key=hold, reverse=True)
    for job in jobs.values():
        agents.statuses[job["metadata"]["uid"]] = GATHERING
    start_operator().ready()
    with scheduler.running_scheduler(plane, "kube-scheduler", scheduler.PLAIN, tmp_path / "scheduler"):
        wait_until("all pods exist", lambda: len(objects.list("pods")) == 6)
        open_gates(plane, objects, [f"{name}-{number}" for name in jobs for number in (0, 1)])
        wait_until("each job holds two nodes", lambda: [len(bound(objects, name)) for name in jobs] == [2, 2])
        open_gates(plane, objects)
        wait_until("each job waits for a third", lambda: all(unschedulable(objects, name) for name in jobs))
        since = waiting_since(objects, hasty)
        for name in jobs:
            wait_until(f"{name} is told so", partial(reports_held_nodes, objects, name))

        def is_opened_and_whole(name: str) -> bool:
            open_gates(plane, objects)
            return is_whole(objects, name)

        wait_until("the patient job has all nodes", lambda: is_opened_and_whole(patient), timeout=SETTLED)
        agents.statuses[jobs[patient]["metadata"]["uid"]] = running()
        wait_until("the patient job runs", lambda: objects.condition(patient, "Running"), timeout=SETTLED)
        released = objects.get(JOBS, hasty)["status"]["halfPlaced"]
        assert "halfPlaced" not in objects.get(JOBS, patient)["status"], "it never let go"
        assert released["releases"] == 1
        # Times of the API are whole seconds.
        assert limit - 1 <= (unix(released["time"]) or 0) - since <= 2 * limit + 15

        finish(kubelet, objects, jobs[patient])
        wait_until("the hasty job has all nodes", lambda: is_opened_and_whole(hasty), timeout=SETTLED)
        agents.statuses[jobs[hasty]["metadata"]["uid"]] = running()
        wait_until("the hasty job runs", lambda: objects.condition(hasty, "Running"), timeout=SETTLED)
        wait_until("its tries are forgotten", lambda: "halfPlaced" not in objects.get(JOBS, hasty)["status"])
