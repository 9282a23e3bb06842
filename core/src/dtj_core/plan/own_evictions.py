"""Ends a job of one pod that its kubelet evicts again and again for what the pod used.

Several pods keep their history in each other's memory, and their coordinator counts such evictions
(dtj_agent/group/restart_policy.py). The memory of a single pod goes with the pod, so the status
counts them here, by the same rule: the first three without progress are free, then each one takes a
restart from the budget.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object
from dtj_core.plan.operator_message import is_own_fault
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.restarts import merge_failures
from dtj_core.plan.times import rfc3339, unix

FREE = 3
# The largest budget.
SPENT = 1000


def count(job: Job, status: Object, pods: tuple[Object, ...], now: float) -> Object:
    """Returns `status` with an eviction that it does not know yet. `pods`: those of the present StatefulSet."""
    if job.spec.replicas + job.spec.spares != 1:
        return status
    known: Object = status.get("ownEvictions") or {}
    for pod in pods:
        if not is_own_fault(pod.get("status") or {}) or pod["metadata"]["uid"] == known.get("podUID"):
            continue
        entry = _with_eviction(job, status, known, pod, now)
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
    spent, failed, restart = len(known.get("spent") or ()), known.get("count", 0), job.spec.restart
    is_budget = spent > restart.max_restarts
    if job.spec.replicas + job.spec.spares != 1 or not (is_budget or failed > restart.max_restarts_without_progress):
        return None
    last: Object = next(
        (f for f in reversed(status.get("failures") or ()) if f.get("reason") == Reason.POD_EVICTED), {}
    )
    limit = f"{failed} times in a row, and maxRestartsWithoutProgress is {restart.max_restarts_without_progress}"
    if is_budget:
        limit = f"{spent} times within {restart.window_seconds} s, and maxRestarts is {restart.max_restarts}"
    message = (
        f"the pod was evicted again and again for what it used, without progress: after {FREE} free times {limit}; "
        f"the last time: {last.get('message', 'unknown')}; raise the requests and limits of the container in "
        "spec.template, or use less"
    )
    return JobResult(
        kind="Failed", reason=Reason.RESTART_BUDGET_SPENT if is_budget else Reason.NO_PROGRESS, message=message
    )


def _with_eviction(job: Job, status: Object, known: Object, pod: Object, now: float) -> Object:
    """Returns the memory of the evictions with one more."""
    last, saved = unix(known.get("time")), unix((status.get("checkpoint") or {}).get("time"))
    has_saved = last is not None and saved is not None and saved > last
    has_moved = has_saved or _step(status) > known.get("step", 0)
    earliest = now - job.spec.restart.window_seconds
    times = [] if has_moved else _after(known.get("times"), earliest)
    spent = [] if has_saved else _after(known.get("spent"), earliest)
    count = 0 if has_moved else known.get("count", 0)
    time = rfc3339(now)
    if len(times) >= FREE:
        spent, count = [*spent[-SPENT:], time], count + _is_known(status, pod, now)
    return {
        "count": count,
        "times": [*times, time][-FREE:],
        "spent": spent,
        "podUID": pod["metadata"]["uid"],
        "step": max(_step(status), known.get("step", 0)),
        "time": time,
    }


def _after(times: object, earliest: float) -> list[str]:
    found = times if isinstance(times, list) else []
    return [time for time in found if (unix(time) or 0.0) > earliest]


def _is_known(status: Object, pod: Object, now: float) -> bool:
    """Returns whether it is known that the pod made no progress: a long-lived one may have, and not shown it."""
    started = unix((pod.get("status") or {}).get("startTime"))
    return bool(status.get("checkpoint") or _step(status)) or started is None or now - started <= names.EARLY_SECONDS


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
