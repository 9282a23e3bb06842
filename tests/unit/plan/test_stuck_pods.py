"""Overdue pods on a dead node are removed, never earlier; pods with stuck workers are replaced."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Delete, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, condition, job, pod, pods, service, started

FENCED: dict[str, Any] = {"checkpoint": {"volume": {"claimName": "shared"}}}
REMOVED = (Delete(kind="Pod", name="digits-1", uid="pod-1", grace_seconds=0),)


def going(owner: str = "set-uid", **metadata: Any) -> dict[str, Any]:
    """Returns a pod whose grace period ended at NOW + 30."""
    gone = pod(1, owner=owner)
    gone["metadata"] |= {"deletionTimestamp": rfc3339(NOW + 30)} | metadata
    return gone


@pytest.mark.parametrize(
    ("seconds", "actions"), [(0, ()), (30, ()), (59, ()), (60, REMOVED), (10_000, REMOVED)],
    ids=["just deleted", "its grace period is over", "nearly overdue", "overdue", "long overdue"],
)  # fmt: skip
def test_terminating_pod_is_force_deleted_once_it_is_overdue(seconds: float, actions: tuple[Delete, ...]) -> None:
    stored, child = started(**FENCED)
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0, deleted=False), going(), pod(2)))
    assert plan(job(running.status, **FENCED), seen, NOW + seconds, SETTINGS).actions == actions


def test_terminating_pod_is_checked_again_when_it_is_overdue() -> None:
    stored, child = started(**FENCED)
    waiting = tuple(pod(o, phase="Pending") | {"spec": {}} for o in (0, 2))
    seen = Observed(stateful_set=child, service=service(), pods=(waiting[0], going(), waiting[1]))
    assert plan(stored, seen, NOW + 1, SETTINGS).requeue_after == 29  # progress; then:
    assert plan(plan_again(stored, seen), seen, NOW + 35, SETTINGS).requeue_after == 25


def plan_again(stored: dict[str, Any], seen: Observed) -> dict[str, Any]:
    return job(plan(stored, seen, NOW + 30, SETTINGS).status, **FENCED)


def test_dead_node_blocks_no_suspension_and_no_resumption() -> None:
    stopping = Observed(service=service(), pods=(going(owner="earlier"),))
    stored, _ = started(**FENCED)
    for spec in ({"suspend": True}, {}):
        assert plan(job(stored["status"], **FENCED, **spec), stopping, NOW + 60, SETTINGS).actions == REMOVED


def test_pod_with_a_finalizer_is_not_force_deleted() -> None:
    stored, child = started(**FENCED)
    seen = Observed(stateful_set=child, service=service(), pods=(going(finalizers=["x/y"]),))
    assert plan(stored, seen, NOW + 99, SETTINGS).actions == ()


def member(ordinal: int, **fields: Any) -> dict[str, Any]:
    return {
        "ordinal": ordinal,
        "pod": f"digits-{ordinal}",
        "node": "w",
        "address": f"10.0.0.{ordinal}",
        "state": "idle",
    } | fields


MEMBERS = {
    "all is well": ([], ()),
    "a worker that does not die": (
        [member(1, state="stuck")],
        (Delete(kind="Pod", name="digits-1", uid="pod-1", grace_seconds=1),),
    ),
    "pod 0's own": ([member(0, state="stuck")], (Delete(kind="Pod", name="digits-0", uid="pod-0", grace_seconds=1),)),
    "of the pod before this one": ([member(1, state="stuck", address="10.9.9.9")], ()),
    "no such pod": ([member(7, state="stuck")], ()),
    "nonsense": ([{"state": "stuck"}, {"pod": 1, "state": "stuck"}, "stuck", None], ()),
}


@pytest.mark.parametrize(("members", "actions"), MEMBERS.values(), ids=MEMBERS)
def test_pod_that_its_agent_reports_as_stuck_is_deleted(members: Any, actions: tuple[Delete, ...]) -> None:
    stored, child = started(**FENCED)
    everybody = [member(ordinal) for ordinal in range(3)] + members
    report = agent(phase="Rendezvous", phaseReason="WorkerStuck", members=everybody)
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report)
    wanted = plan(stored, seen, NOW, SETTINGS)
    assert wanted.actions == actions
    assert wanted.requeue_after == SETTINGS.status_poll_seconds, "its agent is polled in any case"


def test_stuck_pod_is_deleted_once_then_force_deleted() -> None:
    stored, child = started(**FENCED)
    report = agent(phase="Rendezvous", members=[member(1, state="stuck")])
    gone = pod(1)
    gone["metadata"]["deletionTimestamp"] = rfc3339(NOW + 1)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), gone, pod(2)), agent=report)
    assert plan(stored, seen, NOW + 2, SETTINGS).actions == ()
    assert plan(stored, seen, NOW + 31, SETTINGS).actions == REMOVED


def test_stuck_worker_is_in_the_condition_with_pod_and_process() -> None:
    stored, child = started(**FENCED)
    message = (
        "the workers of pod digits-1 on node w can't be killed; the pod must be replaced: "
        "processes 7 do not die of SIGKILL"
    )
    failure = {
        "attempt": 1,
        "rank": 1,
        "ordinal": 1,
        "pod": "digits-1",
        "reason": "WorkerStuck",
        "message": message,
        "time": NOW,
    }
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    report = agent(phase="Rendezvous", phaseReason="WorkerStuck", failures=[failure])
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report)
    status = plan(job(running.status, **FENCED), seen, NOW + 40, SETTINGS).status
    restarting = condition(status, "Restarting")
    assert (restarting["status"], restarting["reason"], restarting["message"]) == ("True", "WorkerStuck", message)
