"""The decision about a job: the table of contents of all policies, in order of precedence.

    plan(job, observed, now, settings) -> Plan

Pure, and without memory: the same arguments give the same plan, whatever was done before and
however often.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api import InvalidJob
from dtj_core.plan import (
    agent_silence,
    avoided_nodes,
    children,
    container_oom,
    deadlines,
    events,
    group_size,
    half_placed,
    outcome,
    own_evictions,
    pod_waits,
    pods,
    progress,
    queueing,
    rejected_field,
    repairs,
    restarts,
    running,
    runtimes,
    sick_nodes,
    startup_deadline,
    stuck_pods,
    suspend,
    version_skew,
)
from dtj_core.plan.agent_report import Report, report_from_status
from dtj_core.plan.conditions import (
    Conditions,
    find_condition,
    is_finished,
    is_true,
    remove_condition,
)
from dtj_core.plan.job import Job
from dtj_core.plan.job_status import (
    begin_again,
    has_started,
    is_stop_announced,
    memory_of_run,
    of_present_spec,
    replica_counts,
)
from dtj_core.plan.model import Apply, Object, Observed, Plan, Settings
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.status_throttle import throttle_status_writes
from dtj_core.plan.times import rfc3339
from dtj_core.plan.workload import find_placement

# Pause before the next check whether the obstacle to the children has been removed.
CONFLICT_SECONDS = 30.0


def plan(obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
    """Returns what to do about a job. `obj`: the job as stored. `now`: Unix seconds."""
    stored: Object = obj.get("status") or {}
    if "deletionTimestamp" in obj["metadata"]:
        return Plan(status=stored)  # garbage collection deletes the children
    if (obj.get("spec") or {}).get("managedBy", names.CONTROLLER) != names.CONTROLLER:
        return Plan(status=stored)  # another controller runs the job
    written, obj = obj, runtimes.effective(obj)
    if is_finished(stored):
        end = queueing.after_end(deadlines.after_end(obj, observed, now), obj, observed, now, settings)
        return stuck_pods.force_delete_overdue(end, obj, observed, now)
    runtime = runtimes.take(obj, observed, now)
    if runtime is not None:
        return Plan(status={**stored, "runtime": runtime}, requeue_after=0)
    conditions = Conditions(obj["metadata"].get("generation", 1), now)
    try:
        job = Job.from_object(obj)
    except InvalidJob as error:
        job = Job.salvage(obj, str(error))
        if version_skew.is_user_error(job, observed, error):
            invalid = JobResult(kind="Failed", reason=Reason.INVALID_SPEC, message=str(error))
            return _end(obj, stored, invalid, conditions)
    observed = replace(
        observed,
        rejection=rejected_field.explain(observed.rejection, job, settings),
        refusal=rejected_field.explain(observed.refusal, job, settings),
    )

    group = pods.current_pods(job, observed)
    report = report_from_status(observed.agent, job.uid) if children.has_stateful_set(job, observed) else None
    status = version_skew.set_stalled(job, of_present_spec(stored, job), conditions)
    status = agent_silence.set_unreachable(job, observed, report, status, conditions)
    status = container_oom.explain_crashes(_merge_report(status, report, now), group, job.trainer_container)
    status = own_evictions.count(job, status, group, now)
    result = _find_result(job, observed, group, status, report, now)
    if result is not None:
        end = _end(obj, status, result, conditions, group, job.trainer_container)
        return replace(end, events=(*events.events_for_agent(stored, report), *end.events))
    hint = stuck_pods.manual_action(obj, observed, now)
    hold = queueing.find_hold(job, observed, now, settings) if job.unreadable is None else None
    if job.spec.suspend:
        wanted = suspend.suspend_job(job, observed, status, conditions, hint)
        if children.are_gone(job, observed):
            wanted = replace(wanted, status=runtimes.forget(written, wanted.status))
        wanted = replace(wanted, events=(*events.events_for_agent(stored, report), *wanted.events))
        wanted = replace(wanted, actions=(*wanted.actions, *queueing.while_suspended(job, observed, settings)))
    elif hold is not None:
        wanted = queueing.hold_job(job, observed, status, conditions, hold, hint)
        wanted = replace(wanted, events=(*events.events_for_agent(stored, report), *wanted.events))
    else:
        wanted = _reconcile_active(job, observed, group, status, report, conditions, settings, hint)
    wanted = replace(wanted, events=(*version_skew.events_for_skew(job, status), *wanted.events))
    wanted = throttle_status_writes(job, wanted, _until_deadline(job, wanted.status, now), now, settings)
    return stuck_pods.force_delete_overdue(wanted, obj, observed, now)


def _find_result(
    job: Job, observed: Observed, group: tuple[Object, ...], status: Object, report: Report | None, now: float
) -> JobResult | None:
    """Returns how the job ended, if it has.

    The report of its agents takes precedence over conclusions from pods.
    """
    result = outcome.find_outcome(job, observed, memory_of_run(status))
    if result is None and observed.rejection is not None and not _has_ever_run(job, observed):
        result = JobResult(kind="Failed", reason=Reason.TEMPLATE_REJECTED, message=observed.rejection)
    if result is None and job.unreadable is None and not job.spec.suspend:
        result = own_evictions.budget_spent(job, status, group)
    if result is None:
        result = deadlines.deadline_exceeded(job.spec, status, now)
    if result is None and job.unreadable is None and not job.spec.suspend:
        waits = partial(_find_wait, job, observed, group, status, report, now)
        result = startup_deadline.deadline_exceeded(job, observed, group, status, report, waits, now)
    if result is None and report is None and observed.agent_asked and job.unreadable is None:
        result = pods.unstartable(group, job, now)
    return result


def _find_wait(
    job: Job, observed: Observed, group: tuple[Object, ...], status: Object, report: Report | None, now: float
) -> pod_waits.Cause | None:
    """Returns what a job that has not begun to train waits for, as condition Running reports it."""
    if children.has_stateful_set(job, observed):
        phase = running.group_phase(job, status, group, report, refusal=observed.refusal, now=now)
        return pod_waits.Cause(phase.reason, phase.message) if phase is not None else None
    condition = find_condition(status, names.RUNNING) or {}
    return pod_waits.Cause(str(condition.get("reason")), str(condition.get("message"))) if condition else None


def _until_deadline(job: Job, status: Object, now: float) -> float | None:
    """Returns the seconds until the next of the job's two deadlines.

    A start that is overdue without proof is judged when something changes.
    """
    start = startup_deadline.until_deadline(job, status, now)
    times = (deadlines.until_deadline(job.spec, status, now), start if start is not None and start > 0 else None)
    return min((time for time in times if time is not None), default=None)


def _end(
    obj: Object,
    status: Object,
    result: JobResult,
    conditions: Conditions,
    group: tuple[Object, ...] = (),
    container: str = names.CONTAINER,
) -> Plan:
    """Writes only the status. Once it is stored, the next reconcile deletes the pods.

    The other way round, a crash in between would lose the outcome.
    """
    time = rfc3339(conditions.now)
    for kind in (names.STALLED, names.AGENT_UNREACHABLE):
        status = remove_condition(status, kind)
    status = _merge_report(status, result.report, conditions.now)
    status = progress.with_goodput(status, conditions.now)
    if result.report is not None:
        status = container_oom.explain_crashes(status, group, container)
        known = status.get("failures") or []
        result = replace(result, message=container_oom.explain_outcome(result.message, result.report.failures, known))
    if result.failures:
        status = restarts.with_evidence(status, result.failures, result.crashes)
    for kind in (names.SUSPENDED, names.RESTARTING, names.RUNNING, result.kind):
        if kind in (names.RUNNING, result.kind) or find_condition(status, kind):
            status = conditions.set(status, kind, kind == result.kind, result.reason, result.message)
    status |= {"observedGeneration": conditions.generation, "completionTime": time, "lastUpdateTime": time}
    status = {name: value for name, value in status.items() if name not in ("coordinator", "shrinkTime")}
    if "replicas" in status and not deadlines.keeps_pods(obj):
        wanted = str(status.get("ready", "")).rpartition("/")[2] or status["replicas"]
        status |= {"readyReplicas": 0, "ready": f"0/{wanted}"}  # the last write of these fields
        status |= {"spares": 0} if "spares" in status else {}
    return Plan(status=status, events=events.events_for_result(result), requeue_after=0)


def _merge_report(status: Object, report: Report | None, now: float) -> Object:
    """Returns `status` with what only adds up in the report: counters, histories, progress."""
    if report is None:
        return status
    status = progress.merge(events.mark_reported(restarts.merge(status, report), report), report, now)
    return status | ({"coordinator": report.leader} if report.leader else {})


def _reconcile_active(
    job: Job,
    observed: Observed,
    group: tuple[Object, ...],
    status: Object,
    report: Report | None,
    conditions: Conditions,
    settings: Settings,
    hint: str,
) -> Plan:
    """Reconciles a job that is to run: its children first, then the state of the group in them.

    `group`: the pods of the present StatefulSet. `hint`: what a person must do about a pod that
    can't be replaced.
    """
    if not children.has_stateful_set(job, observed):
        return _create_or_wait(job, observed, status, conditions, settings, hint)
    assert observed.stateful_set is not None
    if "deletionTimestamp" in observed.stateful_set["metadata"]:
        return Plan(status=status, requeue_after=suspend.WAIT_SECONDS)
    if job.is_renderable and children.is_outdated(job, observed.stateful_set):
        message = "spec was changed while the job was suspended; recreating the pods"
        return suspend.delete_pods(job, observed, status, message, conditions)
    release = half_placed.until_release(job, group, job.status)
    overdue = release is not None and release <= conditions.now
    if job.unreadable is None and (overdue or half_placed.is_releasing(job.status, observed.stateful_set)):
        return half_placed.release(job, observed, group, status, conditions)
    silent = agent_silence.seconds(observed, status)
    phase = running.group_phase(
        job, status, group, report, silent_seconds=silent, refusal=observed.refusal, now=conditions.now
    )
    pause = own_evictions.pause(job, group, conditions.now)
    if phase is not None:
        if pause:
            phase = running.with_pause(phase, Reason.POD_EVICTED, own_evictions.describe_pause(job))
        phase = half_placed.explain(phase, job, group)
        status = running.set_conditions(status, running.add_wait(phase, hint), conditions)
    status = half_placed.forget(status) if is_true(status, names.RUNNING) else status
    now, child = conditions.now, observed.stateful_set
    counts = replica_counts(job, pods.ready_count(group, job.trainer_container), report)
    if is_true(status, names.RUNNING) and (report is None or report.from_follower or report.is_searching):
        # Only the leader knows the size of an elastic group. A silent one has changed nothing.
        counts["replicas"] = job.status.get("replicas", counts["replicas"])
    status = _mark_active(status, conditions) | counts
    status = group_size.with_shrink_time(status, job, child, now)
    wanted = 0 if pause else group_size.wanted_pods(job, child, report, status, now)
    status, moves = avoided_nodes.update(job, status, group, now, settings)
    status, departures, until_departure = sick_nodes.update(job, status, group, observed.nodes, now, settings)
    looks = (
        until_departure,
        _next_look(job, observed, group, settings),
        avoided_nodes.until_next_look(job, status, group, now),
        pod_waits.until_overdue(group, now),
        group_size.until_shrunk(status, now),
        own_evictions.until_next_look(job, status, pause),
        None if release is None else max(release - now, 0.0),
    )
    return Plan(
        actions=(
            *(repairs.repairs(job, observed, group, wanted, now, settings) if job.is_renderable else ()),
            *(children.nudges(job, observed, group, now) if job.is_renderable and not pause else ()),
            *stuck_pods.delete_stuck_pods(group, report),
            *avoided_nodes.move_pods(job, observed.stateful_set, group, now),
            *queueing.while_active(job, observed, status, now, settings),
        ),
        status=status,
        events=(*events.events_for_change(job, status, report), *moves, *departures),
        requeue_after=min((look for look in looks if look is not None), default=None),
    )


def _next_look(job: Job, observed: Observed, group: tuple[Object, ...], settings: Settings) -> float | None:
    looks: list[float | None] = []
    if any(pods.is_running(pod, job.trainer_container) for pod in group):
        looks.append(settings.status_poll_seconds)
        looks.append(agent_silence.until_overdue(observed))
    # No event reports that a pod can't mount its Secret.
    if any(children.is_starting(pod) for pod in group):
        looks.append(children.STARTING_SECONDS)
    elif len(group) < job.pod_count:
        looks.append(children.NUDGE_SECONDS)
    return min((look for look in looks if look is not None), default=None)


def _create_or_wait(
    job: Job, observed: Observed, status: Object, conditions: Conditions, settings: Settings, hint: str
) -> Plan:
    """Creates the children, or waits for what is in the way."""
    if job.unreadable is not None:
        return _wait_for_matching_operator(job, status, conditions)
    conflict = runtimes.missing(job, observed) or children.find_conflict(job, observed)
    conflict = conflict or children.undecided_accelerator(job)
    if conflict is not None:
        return _wait_for(job, status, conflict, conditions)
    if children.pods_of_previous_run(observed):
        message = stuck_pods.append_hint("waiting for pods of the previous run to terminate", hint)
        return _wait_for(job, status, pod_waits.Cause(Reason.PODS_PENDING, message), conditions)
    paused = half_placed.find_pause(status, conditions.now)
    if paused is not None:
        phase = running.GroupPhase(running=False, restarting=False, reason=paused[1].reason, message=paused[1].message)
        status = _mark_active(running.set_conditions(status, phase, conditions), conditions) | replica_counts(job, 0)
        return Plan(status=status, requeue_after=paused[0])
    refusal = observed.refusal or observed.rejection
    if refusal is not None:
        return _wait_for_admission(job, status, refusal, conditions)
    return _create_children(job, observed, status, conditions, settings)


def _create_children(job: Job, observed: Observed, status: Object, conditions: Conditions, settings: Settings) -> Plan:
    """Creates the children. Idempotent: a second time it applies the same objects."""
    lost = has_started(status)
    status = begin_again(status, job, conditions.now)
    phase = running.GroupPhase(
        running=False,
        restarting=lost,
        reason=Reason.POD_DELETED if lost else Reason.PODS_PENDING,
        message="StatefulSet was deleted; recreating it" if lost else "creating the pods",
    )
    status = running.set_conditions(_mark_active(status, conditions), phase, conditions)
    status = sick_nodes.before_start(job, status | replica_counts(job, 0), observed.nodes, conditions.now, settings)
    avoided, placement = avoided_nodes.active_nodes(status, conditions.now), find_placement(observed)
    claim = children.claim(job)
    actions = (
        *(() if claim is None else (Apply(body=claim, if_missing=True),)),
        *(Apply(body=body) for body in children.all_children(job, settings, avoided, placement)),
    )
    return Plan(actions=actions, status=status, events=events.events_for_change(job, status, None))


def _wait_for_admission(job: Job, status: Object, refusal: str, conditions: Conditions) -> Plan:
    """Reports in a condition why the API server rejects a child for now.

    The caller retries at growing intervals. The clock of the job runs meanwhile, so its deadline
    bounds the wait.
    """
    status = _set_not_created(job, status, Reason.CHILD_REFUSED, pods.refused_message(refusal), conditions)
    status = _mark_active(status, conditions)
    return Plan(status=status, events=events.events_for_change(job, status, None), requeue_after=CONFLICT_SECONDS)


def _wait_for_matching_operator(job: Job, status: Object, conditions: Conditions) -> Plan:
    """Creates no pods, because this version can't read the spec.

    A version that can creates them.
    """
    message = "pods can't be created: " + version_skew.describe(job)
    status = _set_not_created(job, status, Reason.INVALID_SPEC, message, conditions)
    return Plan(status=status, events=events.events_for_change(job, status, None))


def _set_not_created(job: Job, status: Object, reason: str, message: str, conditions: Conditions) -> Object:
    """Returns `status` of a job that is to run but has no pods, with the reason."""
    status = begin_again(status, job, conditions.now)
    if is_true(status, names.SUSPENDED):
        status = conditions.set(status, names.SUSPENDED, False, reason, message)
    phase = running.GroupPhase(running=False, restarting=has_started(status), reason=reason, message=message)
    return running.set_conditions(status, phase, conditions) | replica_counts(job, 0)


def _wait_for(job: Job, status: Object, cause: pod_waits.Cause, conditions: Conditions) -> Plan:
    """Waits until what is in the way of the children is gone."""
    if is_stop_announced(status):
        # The pods of the run before are about to go, and _create_children must find the announcement.
        if cause.reason != Reason.PODS_PENDING:
            status = _set_not_created(job, status, cause.reason, cause.message, conditions)
    else:
        phase = running.GroupPhase(running=False, restarting=False, reason=cause.reason, message=cause.message)
        status = running.set_conditions(status, phase, conditions)
    wait = suspend.WAIT_SECONDS if cause.reason == Reason.PODS_PENDING else CONFLICT_SECONDS
    return Plan(status=status, events=events.events_for_change(job, status, None), requeue_after=wait)


def _mark_active(status: Object, conditions: Conditions) -> Object:
    """Returns `status` with the clock running and Suspended false.

    Also called while the children exist: an earlier reconcile may have created them and not written
    the status.
    """
    if is_true(status, names.SUSPENDED):
        status = conditions.set(status, names.SUSPENDED, False, Reason.JOB_RESUMED, "spec.suspend is false")
    return {"startTime": rfc3339(conditions.now)} | status


def _has_ever_run(job: Job, observed: Observed) -> bool:
    """Returns whether the API server has admitted this template before: pods exist, or agents have begun an attempt."""
    return children.has_stateful_set(job, observed) or bool(job.status.get("attempt"))
