"""Kubernetes events: of what has just become true, told once.

Whether something is new is seen by comparing with the status that is stored. Events are sent after the write that holds
what they tell of (write.py), so that the next look finds nothing new; where that write is held back, so are they.
"""

from __future__ import annotations

from collections.abc import Iterator

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan import conditions, suspend
from dtj_core.plan.agent_report import Report
from dtj_core.plan.job import Job
from dtj_core.plan.model import Event, Object
from dtj_core.plan.outcome import JobResult

PROBLEMS = {
    Reason.UNSCHEDULABLE, Reason.VOLUME_CLAIM_NOT_FOUND, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CONFIG_ERROR,
    Reason.AGENT_CRASHED, Reason.AGENT_UNREACHABLE, Reason.CHILD_CONFLICT, Reason.CHILD_REFUSED,
    Reason.ACCELERATOR_UNDECIDED,
}  # fmt: skip
MESSAGE_LENGTH = 1000  # characters; the recorder cuts at the bytes that the API server takes


def events_for_result(ending: JobResult) -> tuple[Event, ...]:
    return (_event("Normal" if ending.kind == names.COMPLETE else "Warning", ending.reason, ending.message),)


def events_for_change(job: Job, status: Object, said: Report | None) -> tuple[Event, ...]:
    """What is true in `status` and was not in the job's stored one."""
    return tuple(_changes(job, job.status, status, said))


def _changes(job: Job, old: Object, new: Object, said: Report | None) -> Iterator[Event]:
    if _has_children(new) and (not _has_children(old) or old.get("startTime") != new.get("startTime")):
        if suspend.was_announced(old):
            yield _event("Normal", Reason.JOB_RESUMED, f"goes on with {job.spec.replicas} pods")
        else:
            yield _event(
                "Normal", Reason.CREATED, f"made the Secret, the Service and the StatefulSet of {job.spec.replicas} pods"
            )
    known = {_key(failure) for failure in old.get("failures") or ()}
    failures = [failure for failure in new.get("failures") or () if _key(failure) not in known]
    for failure in failures:
        message = f"attempt {failure.get('attempt')}: {failure.get('message', '')}"
        yield _event("Warning", failure.get("reason", Reason.WORKER_FAILED), message)
    reported = {failure.get("reason") for failure in failures}

    for kind in (names.RESTARTING, names.RUNNING):
        condition, before = conditions.find(new, kind) or {}, conditions.find(old, kind) or {}
        why, true = condition.get("reason", ""), condition.get("status") == "True"
        is_new = (before.get("status"), before.get("reason")) != (condition.get("status"), why)
        if kind == names.RUNNING and true and (is_new or old.get("attempt") != new.get("attempt")):
            yield _event("Warning" if why in PROBLEMS else "Normal", why, condition["message"])
        elif is_new and why not in reported and (why in PROBLEMS if kind == names.RUNNING else true):
            reported.add(why)
            yield _event("Warning", why, condition["message"])

    yield from events_for_agent(old, said)


def _has_children(status: Object) -> bool:
    """They were made, or are being made with this status."""
    return "startTime" in status and conditions.reason(status, names.RUNNING) != Reason.CHILD_REFUSED


def events_for_agent(old: Object, said: Report | None) -> Iterator[Event]:
    """The agents' warnings that `old` does not know to be told (mark_reported)."""
    since = (old.get("agent") or {}).get("eventTime", 0.0)
    for event in _warnings(said):
        if event["time"] > since:
            yield _event("Warning", event["reason"], event.get("message", ""))


def mark_reported(status: Object, said: Report) -> Object:
    """`status` with the time of the newest agent event that events_for_agent tells."""
    newest = max((event["time"] for event in _warnings(said)), default=None)
    memory = status.get("agent") or {}
    if newest is None or newest <= memory.get("eventTime", 0.0):
        return status
    return {**status, "agent": {**memory, "eventTime": newest}}


def _warnings(said: Report | None) -> list[Object]:
    """The others are of no use to who looks at events, and each would be a write."""
    events = said.events if said else ()
    return [event for event in events if event.get("type") == "Warning" and "time" in event and "reason" in event]


def _key(failure: Object) -> tuple[object, ...]:
    return tuple(failure.get(name) for name in ("attempt", "ordinal", "rank", "pod"))


def _event(kind: str, reason: str, message: str) -> Event:
    return Event(type="Normal" if kind == "Normal" else "Warning", reason=reason, message=message[:MESSAGE_LENGTH])
