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
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane import gangs, scheduler
from tests.integration.controlplane.gangs import (
    JOBS,
    SETTLED,
    Submit,
    bound,
    compete,
    finish,
    is_whole,
    kubelet,
    reports_held_nodes,
    running_condition,
    unschedulable,
    waiting_since,
)
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, change, running, wait_until

__all__ = ["compete", "kubelet"]  # fixtures
pytestmark = pytest.mark.controlplane

Start = Callable[..., Operator]
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1"
GANG = {"podGroup": "SchedulerPlugins"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Returns a control plane with the PodGroups of scheduler-plugins."""
    with gangs.plane_with_nodes(tmp_path_factory.mktemp("plane")) as plane:
        scheduler.install_pod_groups(plane)
        yield plane


@pytest.fixture(scope="module")
def coscheduling(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("coscheduling")
    with scheduler.running_scheduler(plane, "coscheduling", scheduler.COSCHEDULING, folder):
        yield


def test_gang_is_placed_whole_or_not_at_all(
    coscheduling: None,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator().ready()
    gangs.assert_placed_whole_or_not_at_all(GANG, compete, objects, kubelet, agents)


def test_suspended_gang_holds_nothing(
    coscheduling: None,
    namespace: str,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator().ready()
    pod_groups = f"{POD_GROUPS}/namespaces/{namespace}/podgroups"
    gangs.assert_suspended_gang_holds_nothing(GANG, pod_groups, compete, objects, agents)


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
