"""Gangs under Volcano's real scheduler and controllers, on nodes without machines. `make test-volcano` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane import gangs, scheduler
from tests.integration.controlplane.gangs import SETTLED, Submit, bound, compete, is_whole, kubelet, running_condition
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, change, running, wait_until

__all__ = ["compete", "kubelet"]  # fixtures
pytestmark = pytest.mark.controlplane

Start = Callable[..., Operator]
GANG = {"podGroup": "Volcano"}
VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Returns a control plane with Volcano."""
    with gangs.plane_with_nodes(tmp_path_factory.mktemp("plane")) as plane:
        scheduler.install_volcano(plane)
        with scheduler.running_volcano(plane, tmp_path_factory.mktemp("volcano")):
            yield plane


def test_gang_is_placed_whole_or_not_at_all(
    start_operator: Start, compete: Submit, objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    start_operator().ready()
    gangs.assert_placed_whole_or_not_at_all(GANG, compete, objects, kubelet, agents)


def test_suspended_gang_holds_nothing(
    namespace: str, start_operator: Start, compete: Submit, objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    start_operator().ready()
    pod_groups = f"{VOLCANO}/namespaces/{namespace}/podgroups"
    gangs.assert_suspended_gang_holds_nothing(GANG, pod_groups, compete, objects, agents)


def test_gang_waits_for_room_in_its_queue(
    plane: ControlPlane,
    namespace: str,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    queue = {"metadata": {"name": f"{namespace}-small"}, "spec": {"weight": 1, "capability": {"cpu": "1"}}}
    plane.request("POST", f"{VOLCANO}/queues", queue | {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"})
    start_operator().ready()
    # Three pods of 0.6 CPUs each do not fit into the queue, though the nodes are free.
    job = compete("queued", gang=GANG | {"queue": f"{namespace}-small"})
    agents.statuses[job["metadata"]["uid"]] = running()
    found = wait_until(
        "the condition reports the scheduler's reason",
        lambda: (now := running_condition(objects, "queued")).get("reason") == "Unschedulable" and now,
        timeout=SETTLED,
    )
    assert "pod group" in found["message"] or "gang" in found["message"]
    assert bound(objects, "queued") == {}

    def enlarge(found: Any) -> None:
        found["spec"]["capability"]["cpu"] = "4"

    change(plane, f"{VOLCANO}/queues/{namespace}-small", enlarge)
    wait_until("the job runs", lambda: objects.condition("queued", "Running"), timeout=SETTLED)


def test_gang_of_a_higher_priority_goes_first(
    plane: ControlPlane,
    namespace: str,
    start_operator: Start,
    compete: Submit,
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000, "description": "a test's"}
    plane.request(
        "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent | {"metadata": {"name": f"{namespace}-urgent"}}
    )
    start_operator().ready()
    first = compete("first", gang=GANG)
    agents.statuses[first["metadata"]["uid"]] = running()
    wait_until("the first job runs", lambda: objects.condition("first", "Running"), timeout=SETTLED)
    jobs = {
        "usual": compete("usual", gang=GANG),
        "urgent": compete("urgent", gang=GANG, priorityClassName=f"{namespace}-urgent"),
    }
    for name, job in jobs.items():
        agents.statuses[job["metadata"]["uid"]] = running()
        wait_until(f"{name} was tried", lambda name=name: len(gangs.unschedulable(objects, name)) == 3, timeout=SETTLED)
    gangs.finish(kubelet, objects, first)
    wait_until("the urgent job is whole", lambda: is_whole(objects, "urgent"), timeout=SETTLED)
    assert bound(objects, "usual") == {}
