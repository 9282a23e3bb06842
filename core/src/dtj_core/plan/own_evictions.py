"""Ends a job of one pod that its kubelet evicts again and again for what the pod used.

Several pods keep their history in each other's memory, and their coordinator counts such evictions
(dtj_agent/group/restart_policy.py). The memory of a single pod goes with the pod, so the status
counts them here, by the same rule: the first three without progress are free, then each one takes a
restart from the budget.

The controller of the StatefulSet recreates such a pod at once. From the second eviction without
progress on, the StatefulSet therefore has no pod for 10, 20, 40 ... 300 s. The pause follows from the
stored status and the observed pods alone, so an operator that restarts meanwhile keeps to it.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object
from dtj_core.plan.operator_message import is_own_fault
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.pods import is_running
from dtj_core.plan.restarts import merge_failures
from dtj_core.plan.times import rfc3339, unix

FREE = 3
# The largest budget.
SPENT = 1000
# The pause before the pod is created again, after the second eviction without progress and at most.
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
# Pause between the write of an eviction and the next look.
STEP_SECONDS = 0.2


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


def pause(job: Job, pods: tuple[Object, ...], now: float) -> float:
    """Returns the seconds for which the StatefulSet is to have no pod; 0: the pod may be there.

    The stored status decides, so that no pod goes before its eviction is counted. A newer pod that
    runs already is left alone: its work would be lost.
    """
    known: Object = job.status.get("ownEvictions") or {}
    since, seconds = unix(known.get("time")), _pause_seconds(known)
    if since is None or not seconds or job.spec.replicas + job.spec.spares != 1:
        return 0.0
    if any(is_running(pod, job.trainer_container) and pod["metadata"]["uid"] != known.get("podUID") for pod in pods):
        return 0.0
    # A clock that was set back does not add to the pause.
    return min(seconds, max(0.0, since + seconds - now))


def until_next_look(job: Job, status: Object, left: float) -> float | None:
    """Returns the seconds until the pod is created again, or until a new eviction is stored; None: neither."""
    if status.get("ownEvictions") != job.status.get("ownEvictions"):
        return STEP_SECONDS
    return left or None


def describe_pause(job: Job) -> str:
    """Returns what a job waits for whose pod is held back."""
    known: Object = job.status["ownEvictions"]
    end = rfc3339((unix(known["time"]) or 0.0) + _pause_seconds(known))
    return (
        f"pod {job.name}-0 was evicted {_in_a_row(known)} times in a row for what it used, without progress; creating "
        f"it again at {end}. Raise the requests and limits of the container in spec.template, or use less"
    )


def _pause_seconds(known: Object) -> float:
    return (
        min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (number - 2))
        if (number := _in_a_row(known)) > 1
        else 0.0
    )


def _in_a_row(known: Object) -> int:
    """Returns the number of evictions without progress; those of pods that lived for long count up to FREE."""
    free = len(known.get("times") or ())
    return free + (min(int(known.get("count", 0)), SPENT) if free >= FREE else 0)


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
