"""Pods that wait for something that no container status explains."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed, Plan
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, condition, container, pod, service, started

Object = dict[str, Any]
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(NOW)}
NOT_READY = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": rfc3339(NOW)}
READY = NOT_READY | {"status": "True"}
CREATING = container(waiting={"reason": "ContainerCreating"})
INITIALIZING = container(waiting={"reason": "PodInitializing"})
VOLUMES = [
    {"name": "c", "persistentVolumeClaim": {"claimName": "shared"}}, {"name": "s", "secret": {"secretName": "token"}},
    {"name": "n", "nfs": {"server": "10.1.2.3", "path": "/"}}, {"name": "e", "emptyDir": {}},
]  # fmt: skip


def waiting(*conditions: Object, node: str | None = "w1", deleted: bool = False, **status: Any) -> Object:
    made = pod(1, phase=status.pop("phase", "Pending"), conditions=list(conditions), **status)
    made["metadata"]["creationTimestamp"] = rfc3339(NOW)
    if deleted:
        made["metadata"]["deletionTimestamp"] = rfc3339(NOW + 30)
    return made | {"spec": ({"nodeName": node} if node else {}) | {"volumes": VOLUMES}}


def init(name: str = "fetch", **state: Any) -> Object:
    return waiting(SCHEDULED, READY, initContainerStatuses=[container(name, **state)], containerStatuses=[INITIALIZING])


def sidecar() -> Object:
    running = container("proxy") | {"started": True}
    return waiting(SCHEDULED, READY, initContainerStatuses=[running], containerStatuses=[INITIALIZING])


def look(seen: Object, seconds: float) -> Plan:
    stored, child = started()
    found = Observed(stateful_set=child, service=service(), pods=(pod(0), seen, pod(2)))
    return plan(stored, found, NOW + seconds, SETTINGS)


# The pod, and reason and message of the condition within the first minute and after it.
WAITS: dict[str, tuple[Object, tuple[str, str], tuple[str, str]]] = {
    "no scheduler": (
        waiting(node=None), ("PodsPending", "is starting"), ("Unschedulable", "scheduler default-scheduler has not"),
    ),
    "a scheduling gate": (
        waiting({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                 "message": "Scheduling is blocked due to non-empty scheduling gates"}, node=None),
        ("Queued", "pod digits-1 is held back by a scheduling gate"), ("Queued", "held back by a scheduling gate"),
    ),
    "a silent kubelet": (
        waiting(SCHEDULED), ("PodsPending", "is starting"), ("NodeSilent", "kubectl describe node w1"),
    ),
    "a mount": (
        waiting(SCHEDULED, NOT_READY, containerStatuses=[CREATING]),
        ("PodsPending", "is starting"), ("MountPending", "claim shared, Secret token, NFS server 10.1.2.3"),
    ),
    "a mount, as an older kubelet reports it": (
        waiting(SCHEDULED, containerStatuses=[CREATING]),
        ("PodsPending", "is starting"), ("MountPending", "kubectl describe pod digits-1"),
    ),
    "a slow image": (
        waiting(SCHEDULED, READY, containerStatuses=[CREATING]),
        ("PodsPending", "is starting"), ("PodsPending", "pulls an image"),
    ),
    "an init container that runs": (
        init(running={"startedAt": rfc3339(NOW)}),
        ("PodsPending", "init container fetch is running"), ("PodsPending", "init container fetch is running"),
    ),
    "an init container that failed": (
        init(terminated={"exitCode": 7}), ("InitContainerFailed", "exited with 7"), ("InitContainerFailed", "-c fetch"),
    ),
    "an init container that fails again and again": (
        init(last={"exitCode": 7}, waiting={"reason": "CrashLoopBackOff"}),
        ("InitContainerFailed", "exited with 7"), ("InitContainerFailed", "-c fetch"),
    ),
    "a node that rejects it": (
        waiting(SCHEDULED, phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
        ("PodRejected", "OutOfcpu: Node didn't have enough resource"), ("PodRejected", "node w1"),
    ),
    "an eviction before its start": (
        waiting(SCHEDULED, phase="Failed", reason="Evicted", message="low on disk"),
        ("PodEvicted", "low on disk"), ("PodEvicted", "low on disk"),
    ),
    "the end of the pod before it": (
        waiting(SCHEDULED, deleted=True), ("PodsPending", "is terminating"), ("PodsPending", "is terminating"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WAITS)
def test_pending_pod_names_what_it_waits_for(case: str) -> None:
    seen, early, late = WAITS[case]
    for seconds, (reason, message) in ((30, early), (61, late)):
        after = look(seen, seconds)
        running = condition(after.status, "Running")
        assert running["reason"] == reason
        assert message in running["message"]
        expected = [] if reason in ("PodsPending", "PodEvicted", "Queued") else [reason]
        assert [event.reason for event in after.events] == expected


def test_sidecar_that_runs_is_not_waited_for() -> None:
    assert condition(look(sidecar(), 61).status, "Running")["message"] == "pod digits-1 is starting"


@pytest.mark.parametrize("node", [None, "w1"])
def test_silent_wait_is_looked_at_when_it_is_overdue(node: str | None) -> None:
    """No event reports that nothing happens."""
    stored, child = started()
    made = waiting(*([SCHEDULED] if node else []), node=node)
    seen = Observed(stateful_set=child, service=service(), pods=(made,))
    after = plan(stored, seen, NOW + 55, SETTINGS)
    assert after.requeue_after is not None
    assert 0 < after.requeue_after <= 5


def test_passing_of_time_alone_writes_no_status() -> None:
    seen, _, _ = WAITS["a mount"]
    stored, child = started()
    found = Observed(stateful_set=child, service=service(), pods=(pod(0), seen, pod(2)))
    first = plan(stored, found, NOW + 70, SETTINGS)
    assert plan(stored | {"status": first.status}, found, NOW + 700, SETTINGS).status == first.status


def test_pod_that_a_finalizer_keeps_is_named() -> None:
    kept = pod(1, deleted=True)
    kept["metadata"]["finalizers"] = ["example.com/backup"]
    after = look(kept, 31)
    assert "finalizer example.com/backup" in condition(after.status, "Running")["message"]
    assert "finalizer" not in condition(look(kept, 29).status, "Running")["message"]


def test_job_in_a_queue_names_it() -> None:
    stored, child = started(queueName="team-a")
    assert child["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue.x-k8s.io/queue-name" not in child["spec"]["template"]["metadata"]["labels"], "Kueue labels the pods"
    gated = waiting({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}, node=None)
    found = Observed(stateful_set=child, service=service(), pods=(pod(0), gated, pod(2)))
    wanted = plan(stored, found, NOW + 90, SETTINGS)
    running = condition(wanted.status, "Running")
    assert (running["status"], running["reason"]) == ("False", "Queued")
    assert running["message"] == "pod digits-1 is held back by a scheduling gate until queue team-a admits the job"
    assert wanted.status["reason"] == "Queued"
    assert [event for event in wanted.events if event.type == "Warning"] == [], "a queue is no problem"
