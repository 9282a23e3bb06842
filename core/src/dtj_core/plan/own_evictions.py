"""Ends a job of one pod that its kubelet evicts again and again for what the pod used.

Several pods keep their history in each other's memory, and their coordinator counts such evictions
(dtj_agent/group/restart_policy.py). The memory of a single pod goes with the pod, so the status
counts them here, by the same rule: the first three without progress are free, then each one takes a
restart from the budget.
"""

from __future__ import annotations

from dtj_contract.names import Reason
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object
from dtj_core.plan.operator_message import is_own_fault
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.restarts import merge_failures
from dtj_core.plan.times import rfc3339, unix

FREE = 3


def count(job: Job, status: Object, pods: tuple[Object, ...], now: float) -> Object:
    """Returns `status` with an eviction that it does not know yet. `pods`: those of the present StatefulSet."""
    if job.spec.replicas + job.spec.spares != 1:
        return status
    known: Object = status.get("ownEvictions") or {}
    for pod in pods:
        if not is_own_fault(pod.get("status") or {}) or pod["metadata"]["uid"] == known.get("podUID"):
            continue
        in_a_row = known.get("count", 0) if _is_in_a_row(job, status, known, now) else 0
        entry = {"count": in_a_row + 1, "podUID": pod["metadata"]["uid"], "step": _step(status), "time": rfc3339(now)}
        failures = merge_failures(status.get("failures") or [], (_failure(status, pod, now),))
        return {**status, "ownEvictions": entry, "failures": failures}
    return status


def budget_spent(job: Job, status: Object, pods: tuple[Object, ...]) -> JobResult | None:
    """Returns the failure of a job whose evictions have spent its budget.

    The budget is judged only while the evicted pod is there. Later the job may have made progress,
    which the count takes into account at the next eviction.
    """
    known: Object = status.get("ownEvictions") or {}
    if all(pod["metadata"]["uid"] != known.get("podUID") for pod in pods):
        return None
    times, restart = known.get("count", 0), job.spec.restart
    allowed = min(restart.max_restarts, restart.max_restarts_without_progress)
    if job.spec.replicas + job.spec.spares != 1 or times <= FREE + allowed:
        return None
    last: Object = next(
        (f for f in reversed(status.get("failures") or ()) if f.get("reason") == Reason.POD_EVICTED), {}
    )
    is_budget = restart.max_restarts <= restart.max_restarts_without_progress
    field = "maxRestarts" if is_budget else "maxRestartsWithoutProgress"
    message = (
        f"the pod was evicted {times} times in a row without progress for what it used, {FREE} of them free, and "
        f"restart.{field} is {allowed}; the last time: {last.get('message', 'unknown')}; raise the requests and limits "
        "of the container in spec.template, or use less"
    )
    return JobResult(
        kind="Failed", reason=Reason.RESTART_BUDGET_SPENT if is_budget else Reason.NO_PROGRESS, message=message
    )


def _is_in_a_row(job: Job, status: Object, known: Object, now: float) -> bool:
    last, saved = unix(known.get("time")), unix((status.get("checkpoint") or {}).get("time"))
    if last is None or now - last > job.spec.restart.window_seconds:
        return False
    return not (saved is not None and saved > last) and _step(status) <= known.get("step", 0)


def _step(status: Object) -> int:
    """Returns the step that the script has reported; counted steps begin at 0 in each attempt."""
    progress: Object = status.get("progress") or {}
    return int(progress.get("step") or 0) if progress.get("stepSource") == "Script" else 0


def _failure(status: Object, pod: Object, now: float) -> Object:
    found: Object = pod.get("status") or {}
    name = pod["metadata"]["name"]
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    detail = str(found.get("message") or "").strip()
    message = f"pod {name} on node {node} was evicted by its kubelet for what it used"
    return {
        "attempt": status.get("attempt", 0),
        "ordinal": 0,
        "pod": name,
        "node": node,
        "reason": Reason.POD_EVICTED,
        "message": (f"{message}: {detail}" if detail else message)[:1024],
        "time": rfc3339(now),
    }
