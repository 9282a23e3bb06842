"""Deletes pods that must make room but don't terminate.

Their node is gone, or SIGKILL can't end their workers (a dead volume).

A StatefulSet creates no pod while the old one of that name still exists. On a dead node nobody
confirms the termination of a pod; with a process in uninterruptible sleep the container never
terminates. The pod is therefore first deleted like any other, which gives a live kubelet the chance
to terminate it properly. A pod that still exists half a minute later may be removed from the API
(force deletion).

Kubernetes leaves force deletion to a person, because two pods of one identity may then run at once,
and both may write. Force deletion is safe where the old pod is fenced. Either its job has more than
one pod (an elastic job: a minReplicas of more than one), so that its workers stand still without
their peers, and a checkpoint volume, on which the checkpoint library commits nothing for an old
attempt (docs/reference/contract.md, "Attempt and lease"). Or SIGKILL has hit its workers already, so
that they execute no more instructions of their own. Files that a script writes by itself (its own
torch.save) are not fenced. spec.forceDeletePods decides; the default is to remove only fenced pods.
Kubernetes itself (the pod garbage collector) removes a pod whose Node object is gone or has the taint
node.kubernetes.io/out-of-service, so the operator needs no node for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dtj_contract.names import Reason
from dtj_core.plan.agent_report import Report
from dtj_core.plan.model import Delete, Object, Observed, Plan
from dtj_core.plan.times import unix

# Added to the pod's own grace period. A live kubelet needs a second or two.
OVERDUE_SECONDS = 30.0
WHEN_FENCED, ALWAYS = "WhenFenced", "Always"  # spec.forceDeletePods; the third is Never
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
# Nothing is left to save: all workers got SIGKILL long ago.
STUCK_GRACE_SECONDS = 1


def delete_stuck_pods(pods: tuple[Object, ...], report: Report | None) -> tuple[Delete, ...]:
    """Returns deletions of the pods that the agents report as stuck.

    The address must match too: a pod of that name with another address is already the replacement.
    """
    stuck = {(member.get("pod"), member.get("address")) for member in report.stuck} if report is not None else set()
    return tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=STUCK_GRACE_SECONDS)
        for pod in pods
        if (pod["metadata"]["name"], (pod.get("status") or {}).get("podIP")) in stuck
        and "deletionTimestamp" not in pod["metadata"]
    )


def force_delete_overdue(wanted: Plan, job: Object, observed: Observed, now: float) -> Plan:
    """Returns `wanted` with force deletions of overdue pods that may be removed.

    requeue_after is no later than the time at which the next pod is due.

    `job`: as stored.
    """
    removable = [(pod, left) for pod, left in _terminating_pods(observed, now) if may_force_delete(job, pod)]
    overdue = tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=0)
        for pod, left in removable
        if left <= 0
    )
    times = [wanted.requeue_after, *(left for _, left in removable if left > 0)]
    next_look = min((time for time in times if time is not None), default=None)
    return replace(wanted, actions=(*wanted.actions, *overdue), requeue_after=next_look)


def may_force_delete(job: Object, pod: Object) -> bool:
    """Returns whether spec.forceDeletePods lets the operator remove this pod without its kubelet.

    The spec of a finished job may hold anything.
    """
    spec = job.get("spec") or {}
    policy = spec.get("forceDeletePods", WHEN_FENCED)
    if policy != WHEN_FENCED:
        return bool(policy == ALWAYS)
    replicas, elastic = spec.get("replicas", 1), spec.get("elastic")
    if isinstance(elastic, dict):
        replicas = elastic.get("minReplicas", 1)  # so few pods may train on without the others
    return (bool(spec.get("checkpoint")) and isinstance(replicas, int) and replicas > 1) or _is_killed(job, pod)


def _is_killed(job: Object, pod: Object) -> bool:
    """Returns whether `delete_stuck_pods` deleted the pod.

    Its agent then reported that it sent SIGKILL to all of its workers.
    """
    metadata = pod["metadata"]
    failures = [f for f in (job.get("status") or {}).get("failures") or () if f.get("pod") == metadata["name"]]
    grace = metadata.get("deletionGracePeriodSeconds")
    return grace == STUCK_GRACE_SECONDS and any(failure.get("reason") == Reason.WORKER_STUCK for failure in failures)


def manual_action(job: Object, observed: Observed, now: float) -> str:
    """Returns what a person must do about overdue pods that may not be removed; else empty."""
    kept = [pod for pod, left in _terminating_pods(observed, now) if left <= 0 and not may_force_delete(job, pod)]
    if not kept:
        return _remaining_finalizers(observed, now)
    name, node = kept[0]["metadata"]["name"], (kept[0].get("spec") or {}).get("nodeName") or "its node"
    return (
        f"{node} has not confirmed the termination of pod {name}, and two pods of one name could write at once: "
        f"if {node} is down for certain, delete its Node object or add the taint {OUT_OF_SERVICE}; "
        f"or set spec.forceDeletePods to {ALWAYS}"
    )


def _remaining_finalizers(observed: Observed, now: float) -> str:
    """Returns what keeps an overdue pod that the operator never removes; empty if there is none."""
    for pod in observed.pods:
        metadata = pod["metadata"]
        deadline = unix(metadata.get("deletionTimestamp"))
        if metadata.get("finalizers") and deadline is not None and deadline + OVERDUE_SECONDS <= now:
            kept = ", ".join(map(str, metadata["finalizers"]))
            return f"pod {metadata['name']} can't be removed before the owner of its finalizer {kept} removes that"
    return ""


def append_hint(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message


def _terminating_pods(observed: Observed, now: float) -> Iterator[tuple[Object, float]]:
    """Yields the terminating pods, each with the seconds until it is overdue."""
    for pod in observed.pods:
        # Kubernetes sets deletionTimestamp to the end of the grace period, not to the time of the
        # request.
        deadline = unix(pod["metadata"].get("deletionTimestamp"))
        if deadline is not None and not pod["metadata"].get("finalizers"):
            yield pod, deadline + OVERDUE_SECONDS - now
