"""Pods that must make room and don't: those whose node is gone, and those whose workers SIGKILL can't end (a dead volume).

A StatefulSet makes no pod while the old one of that name is still there. On a dead node nobody confirms its end; with a
process in uninterruptible sleep the container never ends. So first such a pod is deleted as any other, which gives a kubelet
that lives the chance to do it properly; what is still there half a minute later is removed from the API.
Kubernetes leaves this to a person, since two pods of one identity could run at once. Here they may: a worker of an old
attempt can neither join the new one nor commit a checkpoint (docs/reference/contract.md, "Attempt and lease"), and one that
SIGKILL has hit runs no instruction of its own any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dtj_operator.plan.model import Delete, Object, Observed, Plan
from dtj_operator.plan.report import Report
from dtj_operator.plan.times import unix

OVERDUE_SECONDS = 30.0  # beyond the pod's own grace period: a kubelet that lives needs a second or two
STUCK_GRACE_SECONDS = 1  # there is nothing left to save: all its workers have got SIGKILL long ago


def replaced(pods: tuple[Object, ...], said: Report | None) -> tuple[Delete, ...]:
    """The pods that the agents say are stuck. Their address, too, must be the one that is told: else it is a new pod by now."""
    stuck = {(member.get("pod"), member.get("address")) for member in said.stuck} if said is not None else set()
    return tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=STUCK_GRACE_SECONDS)
        for pod in pods
        if (pod["metadata"]["name"], (pod.get("status") or {}).get("podIP")) in stuck
        and "deletionTimestamp" not in pod["metadata"]
    )


def released(wanted: Plan, observed: Observed, now: float) -> Plan:
    """`wanted`, and the pods removed that are overdue; a look when the next one is."""
    left = list(_going(observed, now))
    overdue = tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=0)
        for pod, until in left
        if until <= 0
    )
    times = [wanted.requeue_after, *(until for _, until in left if until > 0)]
    next_look = min((time for time in times if time is not None), default=None)
    return replace(wanted, actions=(*wanted.actions, *overdue), requeue_after=next_look)


def _going(observed: Observed, now: float) -> Iterator[tuple[Object, float]]:
    """Pods on their way out, and in how many seconds each is overdue."""
    for pod in observed.pods:
        # Kubernetes writes when the grace period is over, not when the deletion was asked for.
        deadline = unix(pod["metadata"].get("deletionTimestamp"))
        if deadline is not None and not pod["metadata"].get("finalizers"):
            yield pod, deadline + OVERDUE_SECONDS - now
