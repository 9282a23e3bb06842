"""Deadline, time to live, and the cleanup of pods at the end."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Delete, Observed
from tests.unit.plan.objects import NOW, SETTINGS, agent, condition, job, pod, pods, service, started

DELETE_PODS = Delete(kind="StatefulSet", name="digits", uid="set-uid")
DELETE_JOB = Delete(kind="DistributedTrainingJob", name="digits", uid="job-uid")


def finished(kind: str = "Complete") -> dict[str, Any]:
    ended = {"type": kind, "status": "True", "reason": "AllWorkersSucceeded", "message": "", "lastTransitionTime": "x"}
    return {"conditions": [ended], "completionTime": "2026-09-21T14:13:20Z", "observedGeneration": 1}


def test_pod_replaced_after_the_end_is_deleted() -> None:
    """Without a peer that knows the outcome, the new pod would train again in a finished job."""
    _, child = started()
    young = pods(1)[0]
    young["metadata"]["creationTimestamp"] = "2026-09-21T14:13:21Z"
    seen = Observed(stateful_set=child, service=service(), pods=(young,))
    assert plan(job(finished(), cleanPodPolicy="None"), seen, NOW, SETTINGS).actions == (DELETE_PODS,)


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
@pytest.mark.parametrize(("policy", "actions"), [("All", (DELETE_PODS,)), ("None", ())])
def test_pods_are_deleted_at_the_end_unless_the_policy_keeps_them(
    kind: str, policy: str, actions: tuple[Delete, ...]
) -> None:
    _, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    after = plan(job(finished(kind), cleanPodPolicy=policy), seen, NOW, SETTINGS)
    assert (after.actions, after.events, after.requeue_after) == (actions, (), None)
    assert after.status == finished(kind)


def test_clean_pod_policy_can_change_after_the_end() -> None:
    _, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods())
    assert plan(job(finished(), cleanPodPolicy="All", generation=2), seen, NOW, SETTINGS).actions == (DELETE_PODS,)


def test_foreign_statefulset_is_not_deleted_at_the_end() -> None:
    _, child = started()
    child = {**child, "metadata": child["metadata"] | {"ownerReferences": [{"uid": "other"}]}}
    assert plan(job(finished()), Observed(stateful_set=child), NOW, SETTINGS).actions == ()


@pytest.mark.parametrize(
    ("ttl", "seconds", "actions", "requeue"),
    [
        (None, 10**9, (), None),
        (60, 0, (), 60),
        (60, 59, (), 1),
        (60, 60, (DELETE_JOB,), None),
        (0, 0, (DELETE_JOB,), None),
        (60, 10**6, (DELETE_JOB,), None),
    ],
    ids=["none", "just finished", "nearly over", "over", "at once", "long over: the operator was down"],
)
def test_finished_job_is_deleted_after_its_time_to_live(
    ttl: int | None, seconds: float, actions: tuple[Delete, ...], requeue: float | None
) -> None:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    after = plan(job(finished(), **spec), Observed(), NOW + seconds, SETTINGS)
    assert (after.actions, after.requeue_after) == (actions, requeue)


def test_exceeded_deadline_fails_the_job() -> None:
    stored, child = started(activeDeadlineSeconds=100)
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    before = plan(stored, seen, NOW + 99.5, SETTINGS)
    assert before.requeue_after == 0.5
    over = plan(job(before.status, activeDeadlineSeconds=100), seen, NOW + 100, SETTINGS)
    assert condition(over.status, "Failed")["reason"] == "DeadlineExceeded"
    assert "activeDeadlineSeconds (100 s)" in condition(over.status, "Failed")["message"]
    assert [(event.type, event.reason) for event in over.events] == [("Warning", "DeadlineExceeded")]


def test_pending_job_is_requeued_for_its_deadline() -> None:
    stored, child = started(activeDeadlineSeconds=100)
    pending = tuple(pod(o, phase="Pending") | {"spec": {}} for o in range(3))
    waiting = plan(stored, Observed(stateful_set=child, service=service(), pods=pending), NOW + 40, SETTINGS)
    assert waiting.requeue_after == 60


def test_deadline_can_be_set_on_a_running_job() -> None:
    stored, child = started()
    stored["spec"]["activeDeadlineSeconds"] = 10
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert condition(plan(stored, seen, NOW + 11, SETTINGS).status, "Failed")["reason"] == "DeadlineExceeded"
