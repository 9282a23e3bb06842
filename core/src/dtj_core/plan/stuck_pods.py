"""Pods that must make room and don't: those whose node is gone, and those whose workers SIGKILL can't end (a dead volume).

A StatefulSet makes no pod while the old one of that name is still there. On a dead node nobody confirms its end; with a
process in uninterruptible sleep the container never ends. So first such a pod is deleted as any other, which gives a kubelet
that lives the chance to do it properly. What is still there half a minute later may be removed from the API (force deletion).

Kubernetes leaves force deletion to a person, since two pods of one identity may run at once, and both may write. It is sure
where the old pod is fenced: its job has more than one pod, so that its workers stand still without their peers, and a
checkpoint volume, on which the checkpoint library commits nothing for an old attempt (docs/reference/contract.md, "Attempt
and lease"); or SIGKILL has hit its workers already, so that they run no instruction of their own any more. What a script
writes by itself (its own torch.save) is not fenced. spec.forceDeletePods decides; its default is to remove only what is
fenced. A pod whose node object is gone, or has the taint node.kubernetes.io/out-of-service, is removed by Kubernetes itself
(the pod garbage collector), so that the operator needs no right on nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dtj_contract.names import Reason
from dtj_core.plan.agent_report import Report
from dtj_core.plan.model import Delete, Object, Observed, Plan
from dtj_core.plan.times import unix

OVERDUE_SECONDS = 30.0  # beyond the pod's own grace period: a kubelet that lives needs a second or two
WHEN_FENCED, ALWAYS = "WhenFenced", "Always"  # spec.forceDeletePods; the third is Never
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
STUCK_GRACE_SECONDS = 1  # there is nothing left to save: all its workers have got SIGKILL long ago


def delete_stuck_pods(pods: tuple[Object, ...], said: Report | None) -> tuple[Delete, ...]:
    """The pods that the agents say are stuck. Their address, too, must be the one that is told: else it is a new pod by now."""
    stuck = {(member.get("pod"), member.get("address")) for member in said.stuck} if said is not None else set()
    return tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=STUCK_GRACE_SECONDS)
        for pod in pods
        if (pod["metadata"]["name"], (pod.get("status") or {}).get("podIP")) in stuck
        and "deletionTimestamp" not in pod["metadata"]
    )


def force_delete_overdue(wanted: Plan, job: Object, observed: Observed, now: float) -> Plan:
    """`wanted`, and the pods removed that are overdue and fenced; a look when the next one is. `job`: as stored."""
    left = [(pod, until) for pod, until in _terminating_pods(observed, now) if may_force_delete(job, pod)]
    overdue = tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=0)
        for pod, until in left
        if until <= 0
    )
    times = [wanted.requeue_after, *(until for _, until in left if until > 0)]
    next_look = min((time for time in times if time is not None), default=None)
    return replace(wanted, actions=(*wanted.actions, *overdue), requeue_after=next_look)


def may_force_delete(job: Object, pod: Object) -> bool:
    """spec.forceDeletePods lets this pod be removed without its kubelet's word. The spec of a job that has ended may be any."""
    spec = job.get("spec") or {}
    policy = spec.get("forceDeletePods", WHEN_FENCED)
    if policy != WHEN_FENCED:
        return bool(policy == ALWAYS)
    replicas = spec.get("replicas", 1)
    return (bool(spec.get("checkpoint")) and isinstance(replicas, int) and replicas > 1) or _is_killed(job, pod)


def _is_killed(job: Object, pod: Object) -> bool:
    """The pod was deleted by `delete_stuck_pods`: its agent has sent SIGKILL to all of its workers, and said so."""
    metadata = pod["metadata"]
    told = (failure for failure in (job.get("status") or {}).get("failures") or () if failure.get("pod") == metadata["name"])
    grace = metadata.get("deletionGracePeriodSeconds")
    return grace == STUCK_GRACE_SECONDS and any(failure.get("reason") == Reason.WORKER_STUCK for failure in told)


def manual_action(job: Object, observed: Observed, now: float) -> str:
    """What a person has to do about the pods that are overdue and must not be removed; empty if there are none."""
    left = [pod for pod, until in _terminating_pods(observed, now) if until <= 0 and not may_force_delete(job, pod)]
    if not left:
        return ""
    name, node = left[0]["metadata"]["name"], (left[0].get("spec") or {}).get("nodeName") or "its node"
    return (
        f"the end of {name} is not confirmed by {node}, and two pods of one name could write at once: if {node} is down for "
        f"sure, delete its Node object or give it the taint {OUT_OF_SERVICE}; or set spec.forceDeletePods to {ALWAYS}"
    )


def _terminating_pods(observed: Observed, now: float) -> Iterator[tuple[Object, float]]:
    """Pods on their way out, and in how many seconds each is overdue."""
    for pod in observed.pods:
        # Kubernetes writes when the grace period is over, not when the deletion was asked for.
        deadline = unix(pod["metadata"].get("deletionTimestamp"))
        if deadline is not None and not pod["metadata"].get("finalizers"):
            yield pod, deadline + OVERDUE_SECONDS - now
