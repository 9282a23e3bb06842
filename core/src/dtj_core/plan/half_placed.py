"""Two jobs that each hold half of the nodes and wait for the other half: one of them lets go (halfPlacedSeconds).

A gang scheduler or a queue prevents this. Without one, a job whose pods hold nodes while others of it find
none gives its nodes back after a while, and tries again later. Both times are stretched by a fraction that
follows from the job's uid and the number of tries: two jobs that block each other don't let go at the same
time, and the planner stays a pure function.

The clocks of the job's deadlines run on: startupDeadlineSeconds bounds all tries together.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan import suspend
from dtj_core.plan.conditions import Conditions, condition_reason, is_true
from dtj_core.plan.job import Job
from dtj_core.plan.model import Event, Object, Observed, Plan
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.pods import may_run_without_some
from dtj_core.plan.running import GroupPhase
from dtj_core.plan.times import rfc3339, unix

FIELD = "halfPlaced"
# Longest pause between two tries, before it is stretched.
LONGEST_PAUSE_SECONDS = 1800.0


def fraction(uid: str, tries: int, purpose: str) -> float:
    """Returns a number from 0 to 1 that is the same at each look, and another for each job and try."""
    digest = hashlib.sha256(f"{uid}/{tries}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def until_release(job: Job, pods: tuple[Object, ...], status: Object) -> float | None:
    """Returns when (Unix seconds) the pods give their nodes back; None if they don't."""
    limit = job.spec.half_placed_seconds
    if limit is None or is_true(status, names.RUNNING) or may_run_without_some(job, pods):
        return None
    waiting = [since for pod in pods if (since := _unplaced_since(pod)) is not None]
    if not waiting or not placed_count(pods):
        return None
    return min(waiting) + limit * (1 + fraction(job.uid, _tries(status), "hold"))


def placed_count(pods: tuple[Object, ...]) -> int:
    """Returns the number of pods that hold a node."""
    return sum(bool((pod.get("spec") or {}).get("nodeName")) for pod in pods if not _is_terminating(pod))


def is_releasing(status: Object, stateful_set: Object) -> bool:
    """Returns whether the release of these very pods has been announced."""
    if condition_reason(status, names.RUNNING) != Reason.HALF_PLACED:
        return False
    announced = unix((status.get(FIELD) or {}).get("time"))
    created = unix(stateful_set["metadata"].get("creationTimestamp"))
    return announced is not None and (created is None or created <= announced)


def release(job: Job, observed: Observed, pods: tuple[Object, ...], status: Object, conditions: Conditions) -> Plan:
    """Returns the next step towards no pods: announce, then delete."""
    assert observed.stateful_set is not None
    if not is_releasing(job.status, observed.stateful_set):
        tries = _tries(status) + 1
        status = status | {
            FIELD: {
                "releases": tries,
                "time": rfc3339(conditions.now),
                "retryTime": rfc3339(conditions.now + _pause_seconds(job, tries)),
            }
        }
        message = (
            f"{placed_count(pods)} of {job.pod_count} pods held a node for spec.halfPlacedSeconds while the others"
            " found none; giving the nodes back, so that another job can start; the next try is at "
            f"{status[FIELD]['retryTime']}"
        )
        event = Event(type="Warning", reason=Reason.HALF_PLACED, message=message)
        for kind in (names.RESTARTING, names.RUNNING):
            if kind == names.RUNNING or is_true(status, kind):
                status = conditions.set(status, kind, False, Reason.HALF_PLACED, message)
        return Plan(status=status, events=(event,), requeue_after=0)
    message = str(next(c["message"] for c in job.status["conditions"] if c["type"] == names.RUNNING))
    return suspend.delete_pods(job, observed, status, message, conditions, Reason.HALF_PLACED)


def find_pause(status: Object, now: float) -> tuple[float, Cause] | None:
    """Returns the seconds until the next try, with the reason; None if the job need not wait."""
    held = status.get(FIELD) or {}
    again = unix(held.get("retryTime"))
    if again is None or again <= now:
        return None
    message = (
        f"the job has given back its nodes {held.get('releases')} time(s), because not all of its pods found one; "
        f"the next try is at {held['retryTime']}"
    )
    return again - now, Cause(Reason.HALF_PLACED, message)


def forget(status: Object) -> Object:
    """Returns `status` of a group that trains: the next try is the first again."""
    return {key: value for key, value in status.items() if key != FIELD}


def explain(phase: GroupPhase, job: Job, pods: tuple[Object, ...]) -> GroupPhase:
    """Returns `phase` of a group that finds no nodes, with the nodes that it holds meanwhile."""
    held = placed_count(pods)
    if phase.reason != Reason.UNSCHEDULABLE or not held:
        return phase
    cure = "" if job.spec.half_placed_seconds is not None else " (spec.halfPlacedSeconds would give them back)"
    return replace(phase, message=f"{phase.message}; {held} of {job.pod_count} pods hold a node meanwhile{cure}")


def _pause_seconds(job: Job, tries: int) -> float:
    limit = float(job.spec.half_placed_seconds or 0)
    pause = min(limit * 2.0 ** min(tries - 1, 16), LONGEST_PAUSE_SECONDS)
    return pause * (0.5 + fraction(job.uid, tries, "pause"))


def _tries(status: Object) -> int:
    return int((status.get(FIELD) or {}).get("releases") or 0)


def _unplaced_since(pod: Object) -> float | None:
    """Returns since when the scheduler finds no node for the pod; None if that is not so."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    found: Object = next((c for c in conditions if c.get("type") == "PodScheduled"), {})
    if found.get("status") != "False" or found.get("reason") != "Unschedulable" or _is_terminating(pod):
        return None
    return unix(found.get("lastTransitionTime")) or unix(pod["metadata"].get("creationTimestamp"))


def _is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
