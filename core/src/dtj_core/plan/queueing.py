"""When a job with spec.queueName may have pods, if the operator queues it by a Workload of Kueue.

    no Workload ──create──> queued ──Admitted──> pods may run ──Evicted──> pods are deleted, gracefully
                               ^                                                   │
                               └────────── quota is given back, then ──────────────┘

The quota belongs to the job, not to its pods: it is reserved before the first pod exists and stays while
pods are lost, replaced and moved. Given back is the quota at four points alone: after an eviction by Kueue,
at a suspension, when the number of pods changes, and at the end; each time after the last pod is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan import children, suspend
from dtj_core.plan import workload as workloads
from dtj_core.plan.conditions import Conditions, find_condition, is_true
from dtj_core.plan.job import Job, is_owned
from dtj_core.plan.job_status import reset_between_runs
from dtj_core.plan.model import Action, Delete, Event, Object, Observed, PatchStatus, Plan, Settings
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.pods import refused_message
from dtj_core.plan.stuck_pods import append_hint

# Pause before the next check whether Kueue is installed by now, or an obstacle is gone.
AGAIN_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why a job must have no pods now, and what to do once the last pod is gone."""

    cause: Cause
    actions: tuple[Action, ...] = ()
    again: float | None = None
    """Seconds until the next look, where no event of the Workload ends the hold."""


def is_queued_by_us(job: Job, observed: Observed, settings: Settings) -> bool:
    """Returns whether a Workload of ours decides about the pods.

    A StatefulSet with Kueue's own label was created before the operator queued jobs itself, and keeps
    running as it began.
    """
    if not settings.kueue or job.spec.queue_name is None:
        return False
    child = observed.stateful_set
    return child is None or names.LABEL_QUEUE not in (child["metadata"].get("labels") or {})


def find_hold(job: Job, observed: Observed, now: float, settings: Settings) -> Hold | None:
    """Returns why the job must have no pods now; None if they may run."""
    if not is_queued_by_us(job, observed, settings):
        return None
    queue, found = job.spec.queue_name, observed.workload
    if not observed.kueue_served:
        # Without Kueue nothing can be admitted or evicted. A job that runs continues.
        missing = f"the API server does not serve {names.KUEUE_API_VERSION} Workloads: install Kueue 0.15 or newer"
        hold = Hold(cause=Cause(Reason.QUEUED, f"queue {queue} can't admit the job: {missing}"), again=AGAIN_SECONDS)
        return None if children.has_stateful_set(job, observed) else hold
    if found is None:
        return _without_workload(job, observed, settings)
    if not is_owned(found, job.uid):
        if children.is_of_namesake(job, found):
            cause = _waits(job, "the Workload of a deleted job of the same name terminates")
            return Hold(cause=cause, again=suspend.WAIT_SECONDS)
        message = f"Workload {job.name} exists and does not belong to this job: delete it, or give the job another name"
        return Hold(cause=Cause(Reason.CHILD_CONFLICT, message), again=AGAIN_SECONDS)
    if "deletionTimestamp" in found["metadata"]:
        return Hold(cause=_waits(job, "its Workload is being deleted"), again=suspend.WAIT_SECONDS)
    delete = Delete(kind="Workload", name=found["metadata"]["name"], uid=found["metadata"]["uid"])
    if names.LABEL_JOB not in (found["metadata"].get("labels") or {}):
        # Without the label, no watch would show its admission.
        cause = _waits(job, f"somebody took the label {names.LABEL_JOB} from its Workload; queueing it again")
        return Hold(cause=cause, actions=(delete,), again=suspend.WAIT_SECONDS)
    if _is_outdated(job, found):
        pods = f"the job has {workloads.pod_count(found)} pods in the queue and needs {job.pod_count}"
        return Hold(cause=_waits(job, f"{pods}; queueing it again"), actions=(delete,))
    if workloads.is_finished(found):
        cause = _waits(job, "its Workload was finished by somebody else; queueing it again")
        return Hold(cause=cause, actions=(delete,))
    if workloads.is_evicted(found):
        return _evicted(job, found, now)
    if not workloads.is_admitted(found):
        return Hold(cause=_waits(job, workloads.message_of(found, workloads.QUOTA_RESERVED)))
    gone = [name for name in workloads.flavors_of(found) if name not in observed.flavors]
    if gone and not children.has_stateful_set(job, observed):
        # Without its labels and tolerations, the pods would run elsewhere than the quota is.
        detail = f"ResourceFlavor {', '.join(gone)}, from which it has quota, does not exist"
        return Hold(cause=_waits(job, detail), again=AGAIN_SECONDS)
    return None


def _without_workload(job: Job, observed: Observed, settings: Settings) -> Hold:
    refusal = observed.refusal or observed.rejection
    if refusal is not None:
        return Hold(cause=Cause(Reason.CHILD_REFUSED, refused_message(refusal)), again=AGAIN_SECONDS)
    if children.has_stateful_set(job, observed):
        # Kueue counts no quota for these pods any more.
        return Hold(cause=Cause(Reason.EVICTED_BY_QUEUE, "the job's Workload was deleted; queueing it again"))
    return Hold(cause=_waits(job, ""), actions=(children.workload(job, settings),))


def _evicted(job: Job, found: Object, now: float) -> Hold:
    """Returns the hold of an evicted job: with its quota until the pods are gone, then without."""
    reason = str((find_condition(found.get("status") or {}, workloads.EVICTED) or {}).get("reason") or "Evicted")
    detail = workloads.message_of(found, workloads.EVICTED)
    if not workloads.has_quota(found):
        if not workloads.is_active(found):
            detail += f"; to queue the job again: set spec.active of Workload {found['metadata']['name']} to true"
        return Hold(cause=_waits(job, f"evicted ({reason}): {detail}"))
    release = PatchStatus(observed=found, status=workloads.released(found, now))
    return Hold(cause=Cause(Reason.EVICTED_BY_QUEUE, f"{reason}: {detail}"), actions=(release,))


def _waits(job: Job, detail: str) -> Cause:
    message = f"waiting for queue {job.spec.queue_name} to admit the job"
    return Cause(Reason.QUEUED, f"{message}: {detail}" if detail else message)


def _is_outdated(job: Job, found: Object) -> bool:
    """Returns whether the Workload reserves quota for another spec, or for another number of pods."""
    if workloads.pod_count(found) != job.pod_count:
        return True
    return (found.get("spec") or {}).get("queueName") != job.spec.queue_name or children.is_outdated(job, found)


def hold_job(
    job: Job, observed: Observed, status: Object, conditions: Conditions, hold: Hold, manual: str = ""
) -> Plan:
    """Returns the next step towards a job that waits in its queue without pods.

    `manual`: what a person must do about a pod that does not go.
    """
    if not children.are_gone(job, observed):
        start = "the newest checkpoint" if job.spec.checkpoint else "step 0"
        message = append_hint(f"{hold.cause.message}; deleting the pods; resumes from {start}", manual)
        wanted = suspend.delete_pods(job, observed, status, message, conditions, Reason.EVICTED_BY_QUEUE)
        old = find_condition(job.status, names.RUNNING) or {}
        event = Event(type="Normal", reason=Reason.EVICTED_BY_QUEUE, message=hold.cause.message)
        return wanted if old.get("reason") == Reason.EVICTED_BY_QUEUE else replace(wanted, events=(event,))
    old_reason = (find_condition(job.status, names.RUNNING) or {}).get("reason")
    status = reset_between_runs(status, job, conditions.now)
    cause = hold.cause
    if cause.reason == Reason.EVICTED_BY_QUEUE:
        cause = _waits(job, cause.message)
    for kind in (names.SUSPENDED, names.RESTARTING, names.RUNNING):
        if kind == names.RUNNING or is_true(status, kind):
            status = conditions.set(status, kind, False, cause.reason, cause.message)
    is_routine = cause.reason == Reason.QUEUED
    event = Event(type="Normal" if is_routine else "Warning", reason=cause.reason, message=cause.message)
    events = () if old_reason == cause.reason else (event,)
    return Plan(actions=hold.actions, status=status, events=events, requeue_after=hold.again)


def while_suspended(job: Job, observed: Observed, settings: Settings) -> tuple[Action, ...]:
    """Returns how a suspended job gives its quota back, once its last pod is gone.

    Also that of a job whose queueName somebody has removed meanwhile.
    """
    if not settings.kueue or not children.are_gone(job, observed):
        return ()
    return _delete(observed, job.uid)


def while_active(job: Job, observed: Observed, status: Object, now: float, settings: Settings) -> tuple[Action, ...]:
    """Returns what Kueue must learn of an admitted job: that its group has begun to train.

    A job that has left its queue gives its quota back: it uses none.
    """
    found = observed.workload
    if settings.kueue and job.is_renderable and job.spec.queue_name is None:
        return _delete(observed, job.uid)
    if found is None or not is_queued_by_us(job, observed, settings) or workloads.is_ready(found):
        return ()
    if not is_true(status, names.RUNNING):
        return ()
    return (PatchStatus(observed=found, status=workloads.ready(found, now)),)


def after_end(wanted: Plan, obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
    """Returns `wanted` of a finished job with the end of its Workload, once the last pod is gone."""
    found, uid = observed.workload, obj["metadata"]["uid"]
    if found is None or not settings.kueue or not is_owned(found, uid) or workloads.is_finished(found):
        return wanted
    if observed.stateful_set is not None or observed.pods or "deletionTimestamp" in found["metadata"]:
        return wanted
    end = next((c for kind in (names.COMPLETE, names.FAILED) if (c := find_condition(obj["status"], kind))), {})
    reason = "Succeeded" if is_true(obj["status"], names.COMPLETE) else "Failed"
    status = workloads.finished(found, reason, str(end.get("message") or reason), now)
    return replace(wanted, actions=(*wanted.actions, PatchStatus(observed=found, status=status)))


def _delete(observed: Observed, uid: str) -> tuple[Action, ...]:
    found = observed.workload
    if found is None or not is_owned(found, uid) or "deletionTimestamp" in found["metadata"]:
        return ()
    return (Delete(kind="Workload", name=found["metadata"]["name"], uid=found["metadata"]["uid"]),)
