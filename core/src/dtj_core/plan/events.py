"""Kubernetes events for what has just become true, each sent once.

The planner finds what is new by comparison with the stored status. Events are sent after the write
of the status that they follow from, so that the next reconcile finds nothing new. Where
status_throttle.py holds that write back, it holds the events back too.
"""

from __future__ import annotations

from collections.abc import Iterator

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api import launcher, launcher_place
from dtj_core.api.v1alpha1 import Spec
from dtj_core.plan.agent_report import Report
from dtj_core.plan.conditions import find_condition
from dtj_core.plan.job import Job
from dtj_core.plan.job_status import has_children, is_stop_announced
from dtj_core.plan.model import Event, Object
from dtj_core.plan.outcome import JobResult

PROBLEMS = {
    Reason.UNSCHEDULABLE, Reason.VOLUME_CLAIM_NOT_FOUND, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CONFIG_ERROR,
    Reason.AGENT_CRASHED, Reason.OOM_KILLED, Reason.AGENT_UNREACHABLE, Reason.CHILD_CONFLICT, Reason.CHILD_REFUSED,
    Reason.ACCELERATOR_UNDECIDED, Reason.INIT_CONTAINER_FAILED, Reason.MOUNT_PENDING, Reason.NODE_SILENT,
    Reason.POD_REJECTED, Reason.RUNTIME_NOT_FOUND, Reason.RUNTIME_INCOMPLETE,
}  # fmt: skip
# Agents' events of type Normal that become Kubernetes events.
CHANGES = {Reason.SPARE_USED, Reason.GROUP_SHRUNK, Reason.GROUP_GROWN}
# In characters. The recorder cuts at the API server's limit, which is in bytes.
MESSAGE_LENGTH = 1000


def events_for_result(result: JobResult) -> tuple[Event, ...]:
    return (_event("Normal" if result.kind == names.COMPLETE else "Warning", result.reason, result.message),)


def events_for_change(job: Job, status: Object, report: Report | None) -> tuple[Event, ...]:
    """Returns events for what is true in `status` and was not in the job's stored status."""
    return tuple(_changes(job, job.status, status, report))


def events_for_launcher(spec: Spec) -> Iterator[Event]:
    """Returns an event for a launcher in the command, which starts no ranks of its own beside the agents'."""
    launch = spec.launch
    if launch is None:
        if spec.written_command and (kept := launcher.find(spec.written_command)[0]):
            why = "only the launcher can act on its flags"
            if launcher.has_own_interpreter(spec.written_command):
                why = "the launcher itself, which is named by its path, knows the interpreter"
            message = (
                f"{kept} stays in the command, because {why}: the agent starts one in"
                f" each pod, with {spec.processes} as PET_NPROC_PER_NODE, and restarts all of them together"
            )
            yield _event("Normal", Reason.LAUNCHER_KEPT, message)
        elif spec.replicas > 1 and (alone := launcher_place.find_alone(spec.written_command)):
            message = (
                f"{alone} in the shell text trains in each of the {spec.replicas} pods by itself: make it the command"
                f" without a shell, or pass {launcher_place.OWN_FLAGS[alone]}"
            )
            yield _event("Warning", Reason.LAUNCHER_KEPT, message)
        return
    ranks = "1 rank" if spec.processes == 1 else f"{spec.processes} ranks"
    message = f"{launch.launcher} is taken out of the command, because the agents start the ranks: {ranks} in each pod"
    low, high = launch.nodes or (spec.replicas, spec.replicas)
    others = [f"the job has {spec.replicas} pods (spec.replicas)"] if not low <= spec.replicas <= high else []
    if launch.processes not in (None, spec.processes):
        others.append(f"spec.processesPerPod replaces its {launch.processes}")
    if launch.unused:
        others.append(f"without effect: {', '.join(launch.unused)}")
    yield _event("Warning" if others else "Normal", Reason.LAUNCHER_REMOVED, "; ".join([message, *others]))


def _changes(job: Job, old: Object, new: Object, report: Report | None) -> Iterator[Event]:
    if has_children(new) and (not has_children(old) or old.get("startTime") != new.get("startTime")):
        if is_stop_announced(old):
            yield _event("Normal", Reason.JOB_RESUMED, f"resumed with {_pods(job)}")
        elif old.get("conditions"):
            # A job that starts at once has one event until it trains, which names its pods and ranks. The first
            # status states what this event would, and each event is one more write.
            message = f"created the StatefulSet with {_pods(job)}, and what it needs"
            yield _event("Normal", Reason.CREATED, message)
        yield from events_for_launcher(job.spec)
    known = {_key(failure): failure.get("reason") for failure in old.get("failures") or ()}
    failures = [failure for failure in new.get("failures") or () if _is_news(failure, known)]
    announced = _announced_loss(old, failures)
    for failure in failures:
        if failure is announced:
            continue
        message = f"attempt {failure.get('attempt')}: {failure.get('message', '')}"
        yield _event("Warning", failure.get("reason", Reason.WORKER_FAILED), message)
    reported = {failure.get("reason") for failure in failures}

    for kind in (names.RESTARTING, names.RUNNING):
        condition, before = find_condition(new, kind) or {}, find_condition(old, kind) or {}
        reason, true = condition.get("reason", ""), condition.get("status") == "True"
        is_new = (before.get("status"), before.get("reason")) != (condition.get("status"), reason)
        if kind == names.RUNNING and true and (is_new or old.get("attempt") != new.get("attempt")):
            yield _event("Warning" if reason in PROBLEMS else "Normal", reason, condition["message"])
        elif reason == Reason.POD_LOST and _is_loss_listed(old, new.get("attempt")):
            continue
        elif is_new and reason not in reported and (reason in PROBLEMS if kind == names.RUNNING else true):
            reported.add(reason)
            yield _event("Normal" if reason in CHANGES else "Warning", reason, condition["message"])

    yield from events_for_agent(old, report)


def events_for_agent(old: Object, report: Report | None) -> Iterator[Event]:
    """Returns events for agents' warnings that `old` does not mark as reported (mark_reported)."""
    since = (old.get("agent") or {}).get("eventTime", 0.0)
    for event in _warnings(report):
        if event["time"] > since:
            yield _event(event.get("type", ""), event["reason"], event.get("message", ""))


def mark_reported(status: Object, report: Report) -> Object:
    """Returns `status` with the time of the newest agent event that events_for_agent returns."""
    newest = max((event["time"] for event in _warnings(report)), default=None)
    memory = status.get("agent") or {}
    if newest is None or newest <= memory.get("eventTime", 0.0):
        return status
    return {**status, "agent": {**memory, "eventTime": newest}}


def _warnings(report: Report | None) -> list[Object]:
    """Returns the agents' warnings, and what has changed the pods of the group.

    Other agent events help nobody who reads `kubectl describe`, and each costs a write.
    """
    events = report.events if report else ()
    return [
        event
        for event in events
        if "time" in event and (event.get("type") == "Warning" or event.get("reason") in CHANGES) and "reason" in event
    ]


def _pods(job: Job) -> str:
    spares = job.spec.spares
    return f"{job.spec.replicas} pods" + (f" and {spares} spare{'s' if spares > 1 else ''}" if spares else "")


def _is_news(failure: Object, known: dict[tuple[object, ...], object]) -> bool:
    """Returns whether a failure is new, or turns out to be a lack of memory."""
    key = _key(failure)
    return key not in known or (failure.get("reason") == Reason.OOM_KILLED != known[key])


def _announced_loss(old: Object, failures: list[Object]) -> Object | None:
    """Returns the new failure whose loss the condition Restarting has announced already; None if there is none.

    The group stops, or the operator misses a pod, before the agents list the loss. Each loss is one
    event, so the first failure of that attempt gets none.
    """
    restarting, attempt = find_condition(old, names.RESTARTING) or {}, old.get("attempt")
    is_announced = (restarting.get("status"), restarting.get("reason")) == ("True", Reason.POD_LOST)
    if not is_announced or _is_loss_listed(old, attempt):
        return None
    return next((failure for failure in failures if _is_loss(failure, attempt)), None)


def _is_loss_listed(status: Object, attempt: object) -> bool:
    return any(_is_loss(failure, attempt) for failure in status.get("failures") or ())


def _is_loss(failure: Object, attempt: object) -> bool:
    return (failure.get("reason"), failure.get("attempt")) == (Reason.POD_LOST, attempt)


def _key(failure: Object) -> tuple[object, ...]:
    return tuple(failure.get(name) for name in ("attempt", "ordinal", "rank", "pod"))


def _event(kind: str, reason: str, message: str) -> Event:
    return Event(type="Normal" if kind == "Normal" else "Warning", reason=reason, message=message[:MESSAGE_LENGTH])
