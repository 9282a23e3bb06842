"""Force deletion of fenced pods, spec.forceDeletePods, and the hint to a person."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Delete, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, World, agent, condition, job, pod, pods, service, started

VOLUME = {"volume": {"claimName": "shared"}}
LATE = NOW + 10_000
REMOVED = (Delete(kind="Pod", name="digits-1", uid="pod-1", grace_seconds=0),)


def going(ordinal: int = 1, owner: str = "set-uid", **metadata: Any) -> dict[str, Any]:
    """Returns a pod on a dead node whose grace period ended at NOW + 30."""
    gone = pod(ordinal, owner=owner)
    gone["metadata"] |= {"deletionTimestamp": rfc3339(NOW + 30)} | metadata
    return gone


def look(now: float = LATE, *, failures: Any = (), gone: Any = None, **spec: Any) -> Any:
    stored, child = started(**spec)
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    status = running.status | {"failures": list(failures)}
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), gone or going(), pod(2)))
    return plan(job(status, **spec), seen, now, SETTINGS)


SPECS: dict[str, tuple[Any, tuple[Delete, ...]]] = {
    "a plain script": ({}, ()),
    "a plain script, Always": ({"forceDeletePods": "Always"}, REMOVED),
    "the checkpoint library": ({"checkpoint": VOLUME}, REMOVED),
    "the checkpoint library, Never": ({"checkpoint": VOLUME, "forceDeletePods": "Never"}, ()),
    "WhenFenced, and not fenced": ({"forceDeletePods": "WhenFenced"}, ()),
}


@pytest.mark.parametrize(("spec", "actions"), SPECS.values(), ids=SPECS)
def test_overdue_pod_is_removed_only_if_its_job_is_fenced(spec: Any, actions: tuple[Delete, ...]) -> None:
    assert look(**spec).actions == actions


def test_overdue_pod_of_a_job_of_one_pod_is_not_removed() -> None:
    spec = {"replicas": 1, "checkpoint": VOLUME}
    stored, child = started(**spec)
    seen = Observed(stateful_set=child, service=service(), pods=(going(0),))
    assert plan(stored, seen, LATE, SETTINGS).actions == ()


@pytest.mark.parametrize(("least", "removed"), [(1, ()), (2, REMOVED)])
def test_overdue_pod_that_may_train_alone_is_not_removed(least: int, removed: tuple[Delete, ...]) -> None:
    assert look(checkpoint=VOLUME, elastic={"minReplicas": least}).actions == removed


def test_unremovable_pod_is_reported_with_its_node_and_the_remedies() -> None:
    message = condition(look().status, "Restarting")["message"]
    for part in ("digits-1", "w1", "node.kubernetes.io/out-of-service", "spec.forceDeletePods"):
        assert part in message
    assert "out-of-service" not in condition(look(NOW + 31).status, "Restarting")["message"], (
        "its kubelet may still terminate it"
    )
    assert "out-of-service" not in condition(look(checkpoint=VOLUME).status, "Restarting")["message"]


def test_unremovable_pod_is_reported_in_suspension_and_before_a_run() -> None:
    world = World(job())
    world.settle(NOW)
    world.see(pods=(going(0, owner=world.set_uid or ""),))
    assert world.job is not None
    world.job["spec"]["suspend"] = True
    world.settle(LATE)
    assert "out-of-service" in condition(world.status, "Running")["message"]
    assert "delete Pod" not in world.writes
    world.job["spec"]["suspend"] = False
    wanted = world.reconcile(LATE + 1)
    assert wanted is not None
    assert wanted.actions == ()


def test_pod_whose_workers_got_sigkill_is_removed_without_checkpoints() -> None:
    failure = {"attempt": 1, "pod": "digits-1", "reason": "WorkerStuck"}
    stuck = going(deletionGracePeriodSeconds=1)
    assert look(failures=[failure], gone=stuck).actions == REMOVED
    assert look(failures=[failure], gone=going()).actions == (), "somebody else deleted the pod, for another reason"
    assert look(gone=stuck).actions == ()
    assert look(failures=[failure], gone=stuck, forceDeletePods="Never").actions == ()


@pytest.mark.parametrize(
    ("spec", "removed"), [({}, False), ({"checkpoint": VOLUME}, True), ({"replicas": "garbage"}, False)]
)
def test_pods_of_a_finished_job_follow_the_same_rule(spec: Any, removed: bool) -> None:
    ended = {
        "conditions": [{"type": "Complete", "status": "True", "reason": "x", "message": ""}],
        "completionTime": rfc3339(NOW),
    }
    wanted = plan(job(ended, **spec), Observed(pods=(going(),)), LATE, SETTINGS)
    assert wanted.actions == (REMOVED if removed else ())
