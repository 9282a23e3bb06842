"""A pod on a dead node is removed once it is overdue, and never before."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_operator.plan import plan
from dtj_operator.plan.model import Delete, Observed
from dtj_operator.plan.times import rfc3339
from tests.plan.build import NOW, SETTINGS, agent, job, pod, pods, service, started

REMOVED = (Delete(kind="Pod", name="digits-1", uid="pod-1", grace_seconds=0),)


def going(owner: str = "set-uid", **metadata: Any) -> dict[str, Any]:
    """A pod that was to be gone at NOW + 30."""
    gone = pod(1, owner=owner)
    gone["metadata"] |= {"deletionTimestamp": rfc3339(NOW + 30)} | metadata
    return gone


@pytest.mark.parametrize(
    ("seconds", "actions"), [(0, ()), (30, ()), (59, ()), (60, REMOVED), (10_000, REMOVED)],
    ids=["just deleted", "its grace period is over", "nearly overdue", "overdue", "long overdue"],
)  # fmt: skip
def test_a_pod_that_does_not_end(seconds: float, actions: tuple[Delete, ...]) -> None:
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0, deleted=False), going(), pod(2)))
    assert plan(job(running.status), seen, NOW + seconds, SETTINGS).actions == actions


def test_it_is_looked_at_again_when_it_is_overdue() -> None:
    stored, child = started()
    waiting = tuple(pod(o, phase="Pending") for o in (0, 2))
    seen = Observed(stateful_set=child, service=service(), pods=(waiting[0], going(), waiting[1]))
    assert plan(stored, seen, NOW + 1, SETTINGS).requeue_after == 29  # progress; then:
    assert plan(plan_again(stored, seen), seen, NOW + 35, SETTINGS).requeue_after == 25


def plan_again(stored: dict[str, Any], seen: Observed) -> dict[str, Any]:
    return job(plan(stored, seen, NOW + 30, SETTINGS).status)


def test_a_dead_node_does_not_keep_a_job_from_being_suspended_and_resumed() -> None:
    stopping = Observed(service=service(), pods=(going(owner="earlier"),))
    stored, _ = started()
    for spec in ({"suspend": True}, {}):
        assert plan(job(stored["status"], **spec), stopping, NOW + 60, SETTINGS).actions == REMOVED


def test_a_pod_that_somebody_holds_by_a_finalizer_is_left_to_him() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=(going(finalizers=["x/y"]),))
    assert plan(stored, seen, NOW + 99, SETTINGS).actions == ()
