"""What to do about a job: the table of contents of all policies, in the order in which they have the say.

    plan(job, observed, now, settings) -> Plan

Pure, and without memory: the same arguments give the same plan, whatever was done before and however often.
"""

from __future__ import annotations

from dataclasses import replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api import InvalidJob
from dtj_core.plan import (
    agent_report,
    children,
    conditions,
    deadlines,
    events,
    outcome,
    pods,
    progress,
    restarts,
    running,
    skew,
    stuck_pods,
    suspend,
)
from dtj_core.plan.agent_report import Report
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Object, Observed, Plan, Settings
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.status_throttle import throttle_status_writes
from dtj_core.plan.times import rfc3339

CONFLICT_SECONDS = 30.0  # until we look again whether somebody has removed what is in our way


def plan(obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
    """`obj`: the job as stored. `now`: Unix seconds."""
    stored: Object = obj.get("status") or {}
    if "deletionTimestamp" in obj["metadata"]:
        return Plan(status=stored)  # the children go by their owner references
    if conditions.is_finished(stored):
        return stuck_pods.force_delete_overdue(deadlines.after_end(obj, observed, now), obj, observed, now)
    try:
        job = Job.from_object(obj)
    except InvalidJob as error:
        job = Job.salvage(obj, str(error))
        if skew.is_user_error(job, observed, error):
            return _end(obj, stored, JobResult(kind="Failed", reason=Reason.INVALID_SPEC, message=str(error)), now)

    said = agent_report.report_from_status(observed.agent, job.uid) if suspend.has_run(job, observed) else None
    status = _merged(skew.set_stalled(job, {**stored, "observedGeneration": job.generation}, now), said, now)
    result = _find_result(job, observed, status, said, now)
    if result is not None:
        end = _end(obj, status, result, now)
        return replace(end, events=(*events.events_for_agent(stored, said), *end.events))
    if job.spec.suspend:
        wanted = suspend.suspend_job(job, observed, status, now, stuck_pods.manual_action(obj, observed, now))
        wanted = replace(wanted, events=(*events.events_for_agent(stored, said), *wanted.events))
    else:
        wanted = _active(job, observed, status, said, now, settings, stuck_pods.manual_action(obj, observed, now))
    wanted = replace(wanted, events=(*skew.events_for_skew(job, status), *wanted.events))
    wanted = throttle_status_writes(job, wanted, deadlines.until_deadline(job.spec, status, now), now, settings)
    return stuck_pods.force_delete_overdue(wanted, obj, observed, now)


def _find_result(job: Job, observed: Observed, status: Object, said: Report | None, now: float) -> JobResult | None:
    """Why the job is over, if it is: what its agents say goes before what we conclude."""
    found = outcome.find_outcome(job, observed, status.get("agent") or {})
    if found is None and observed.rejection is not None and not _has_ever_run(job, observed):
        found = JobResult(kind="Failed", reason=Reason.TEMPLATE_REJECTED, message=observed.rejection)
    if found is None:
        found = deadlines.deadline_exceeded(job.spec, status, now)
    if found is None and said is None and job.unreadable is None:
        found = pods.unstartable(pods.current_pods(job, observed), job, now)
    return found


def _end(obj: Object, status: Object, result: JobResult, now: float) -> Plan:
    """Only the status: once it is written, the next look cleans up. The other way round a crash would lose the outcome."""
    generation = obj["metadata"].get("generation", 1)
    status = progress.with_goodput(_merged(conditions.without(status, names.STALLED), result.report, now), now)
    if result.failures:
        status = restarts.with_evidence(status, result.failures, result.crashes)
    for kind in (names.SUSPENDED, names.RESTARTING, names.RUNNING, result.kind):
        if kind in (names.RUNNING, result.kind) or conditions.find(status, kind):
            status = conditions.put(
                status, kind, kind == result.kind, result.reason, result.message, generation=generation, now=now
            )
    status |= {"observedGeneration": generation, "completionTime": rfc3339(now), "lastUpdateTime": rfc3339(now)}
    if "replicas" in status and not deadlines.keeps_pods(obj):
        status |= {"readyReplicas": 0, "ready": f"0/{status['replicas']}"}  # nothing of it is written later
    return Plan(status=status, events=events.events_for_result(result), requeue_after=0)


def _merged(status: Object, said: Report | None, now: float) -> Object:
    """`status` with everything in the agents' word that only adds up: counters, histories, progress."""
    if said is None:
        return status
    return progress.merge(events.mark_reported(restarts.merge(status, said), said), said, now)


def _active(job: Job, observed: Observed, status: Object, said: Report | None, now: float, settings: Settings, held: str) -> Plan:
    """A job that is to run: its children, then what goes on in them. `held`: what keeps a pod of it from being replaced."""
    if job.unreadable is not None and not suspend.has_run(job, observed):
        return _unstarted(job, status, now)
    if not suspend.has_run(job, observed):
        conflict = children.find_conflict(job, observed) or children.undecided_accelerator(job)
        if conflict is not None:
            return _blocked(job, status, conflict, now)
        if suspend.leftovers(observed):
            waits = suspend.joined("pods of an earlier run are still on their way out", held)
            return _blocked(job, status, pods.Cause(Reason.PODS_PENDING, waits), now)
        refusal = observed.refusal or observed.rejection
        if refusal is not None:
            return _refused(job, status, refusal, now)
        return _start(job, status, now, settings)
    assert observed.stateful_set is not None
    if "deletionTimestamp" in observed.stateful_set["metadata"]:
        return Plan(status=status, requeue_after=suspend.WAIT_SECONDS)
    if job.unreadable is None and children.is_outdated(job, observed.stateful_set):
        return suspend.delete_pods(
            job, observed, status, "the spec was changed while it was suspended: the pods are made anew", now
        )
    group = pods.current_pods(job, observed)
    state = running.group_phase(job, status, group, said, silent_seconds=observed.agent_silent_seconds, refusal=observed.refusal)
    if state is not None:
        status = running.set_conditions(job, status, running.add_wait(state, held), now)
    status = _begun(job, status, now) | _replicas(job, pods.ready_count(group, job.trainer_container))
    return Plan(
        actions=(
            *(children.repairs(job, observed, group, now, settings) if job.unreadable is None else ()),
            *(children.nudges(job, observed, group, now) if job.unreadable is None else ()),
            *stuck_pods.delete_stuck_pods(group, said),
        ),
        status=status,
        events=events.events_for_change(job, status, said),
        requeue_after=_next_look(job, observed, group, settings),
    )


def _next_look(job: Job, observed: Observed, group: tuple[Object, ...], settings: Settings) -> float | None:
    if group and pods.is_running(group[0], job.trainer_container):
        # The agent can be asked, or soon: nothing but asking tells when its answer changes.
        return settings.poll_seconds(observed.agent_silent_seconds)
    # Nor does anybody tell that a pod can't mount its Secret.
    if any(children.is_starting(pod) for pod in group):
        return children.STARTING_SECONDS
    return children.NUDGE_SECONDS if len(group) < job.spec.replicas else None


def _start(job: Job, status: Object, now: float, settings: Settings) -> Plan:
    """Make the children. Done twice it makes the same ones."""
    lost = _has_started(status)
    if suspend.was_announced(status):
        status = suspend.between_runs(status, job, now)
    state = running.GroupPhase(
        running=False,
        restarting=lost,
        reason=Reason.POD_DELETED if lost else Reason.PODS_PENDING,
        message="its StatefulSet was deleted, and is made again" if lost else "its pods are being made",
    )
    status = running.set_conditions(job, _begun(job, status, now), state, now) | _replicas(job, 0)
    actions = tuple(Apply(body=body) for body in children.all_children(job, settings))
    return Plan(actions=actions, status=status, events=events.events_for_change(job, status, None))


def _refused(job: Job, status: Object, words: str, now: float) -> Plan:
    """The API server refuses a child for now: a condition has its words. The shell asks again, later and later.

    The job's clock runs meanwhile, so its deadline bounds the wait.
    """
    message = "the API server refuses a child of the job, and is asked again: " + words
    if suspend.was_announced(status):
        status = suspend.between_runs(status, job, now)
    if conditions.is_true(status, names.SUSPENDED):
        status = conditions.put(status, names.SUSPENDED, False, Reason.CHILD_REFUSED, message, generation=job.generation, now=now)
    state = running.GroupPhase(running=False, restarting=_has_started(status), reason=Reason.CHILD_REFUSED, message=message)
    status = running.set_conditions(job, _begun(job, status, now), state, now) | _replicas(job, 0)
    return Plan(status=status, events=events.events_for_change(job, status, None), requeue_after=CONFLICT_SECONDS)


def _has_ever_run(job: Job, observed: Observed) -> bool:
    """Its pods are there, or agents of it have begun an attempt: the API server has taken this template before."""
    return suspend.has_run(job, observed) or bool(job.status.get("attempt"))


def _unstarted(job: Job, status: Object, now: float) -> Plan:
    """This version can't read the spec, so it makes no pods of it: a version that can, does."""
    message = "its pods can't be made: " + skew.describe(job)
    if suspend.was_announced(status):
        status = suspend.between_runs(status, job, now)
    if conditions.is_true(status, names.SUSPENDED):
        status = conditions.put(status, names.SUSPENDED, False, Reason.INVALID_SPEC, message, generation=job.generation, now=now)
    state = running.GroupPhase(running=False, restarting=_has_started(status), reason=Reason.INVALID_SPEC, message=message)
    status = running.set_conditions(job, status, state, now) | _replicas(job, 0)
    return Plan(status=status, events=events.events_for_change(job, status, None))


def _has_started(status: Object) -> bool:
    """The group ran, or was about to again."""
    return conditions.is_true(status, names.RUNNING) or conditions.is_true(status, names.RESTARTING)


def _begun(job: Job, status: Object, now: float) -> Object:
    """The clock runs, and nothing is suspended any more. Also where the children were made but that was not written."""
    if conditions.is_true(status, names.SUSPENDED):
        status = conditions.put(
            status, names.SUSPENDED, False, Reason.JOB_RESUMED, "spec.suspend is false", generation=job.generation, now=now
        )
    return {"startTime": rfc3339(now)} | status


def _blocked(job: Job, status: Object, cause: pods.Cause, now: float) -> Plan:
    """Something is in the way of our children: wait until it is gone."""
    if conditions.reason(status, names.RUNNING) != Reason.JOB_SUSPENDED:  # which the start must know
        state = running.GroupPhase(running=False, restarting=False, reason=cause.reason, message=cause.message)
        status = running.set_conditions(job, status, state, now)
    wait = suspend.WAIT_SECONDS if cause.reason == Reason.PODS_PENDING else CONFLICT_SECONDS
    return Plan(status=status, events=events.events_for_change(job, status, None), requeue_after=wait)


def _replicas(job: Job, ready: int) -> Object:
    return {"replicas": job.spec.replicas, "readyReplicas": ready, "ready": f"{ready}/{job.spec.replicas}"}
