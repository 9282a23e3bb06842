"""The phase of the group and its reason: conditions Running and Restarting."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dtj_contract import agent_status, names
from dtj_contract.names import Reason
from dtj_core.plan import container_oom, mesh
from dtj_core.plan.agent_report import Report
from dtj_core.plan.agent_silence import UNREACHABLE_SECONDS
from dtj_core.plan.conditions import Conditions, find_condition, is_true
from dtj_core.plan.job import Job
from dtj_core.plan.job_status import has_started
from dtj_core.plan.model import Object
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.pods import LOST, may_run_without_some, ready_count, why_lost, why_not_running

FORMING = "all pods are running; waiting for their agents to form a group"
NO_ANSWER_YET = (
    "all pods are running; waiting for an agent to answer. If this persists, check the log of a pod, "
    f"and whether a NetworkPolicy blocks the operator from port {names.AGENT_PORT}"
)
UNREACHABLE = (
    "pods are running, but no agent has answered the operator for a minute or more, so the state of "
    "the group is unknown: check the log of a pod, and whether a NetworkPolicy blocks the operator from "
    f"port {names.AGENT_PORT}"
)
# Separates why the group does not run from what it waits for.
NOW = "; now "
UNEXPLAINED = "a pod was lost"  # where no pod shows why
RESIZES = frozenset({Reason.GROUP_SHRUNK, Reason.GROUP_GROWN})


@dataclass(frozen=True, kw_only=True)
class GroupPhase:
    """Values of conditions Running and Restarting, with the reason and message of both."""

    running: bool
    restarting: bool
    reason: str
    message: str


def group_phase(
    job: Job,
    status: Object,
    pods: tuple[Object, ...],
    report: Report | None,
    *,
    silent_seconds: float = 0.0,
    refusal: str | None = None,
    now: float = 0.0,
) -> GroupPhase | None:
    """Returns the phase of the group; None if nothing new is known.

    Nothing new is known while its leader does not answer.

    `refusal`: the API server's message where it rejects a child.
    """
    if report is not None and (report.from_follower or _knows_less(report, status)):
        report = None
    if report is not None and report.phase == agent_status.RUNNING:
        message = _describe_attempt(job, status, pods, report, refusal, now)
        return GroupPhase(running=True, restarting=False, reason=Reason.WORKERS_RUNNING, message=message)
    if (
        report is not None
        and report.phase not in (agent_status.RENDEZVOUS, agent_status.STOPPING)
        and find_condition(job.status, names.RUNNING)
    ):
        # Finished: the outcome comes with the report, or with the termination message.
        return None
    blocked = why_not_running(pods, job, refusal, now)
    are_there = may_run_without_some(job, pods) or (blocked is None and why_lost(pods, job) is None)
    if report is None and are_there and silent_seconds >= UNREACHABLE_SECONDS:
        return _unreachable(job, mesh.hint(pods, now))
    if not has_started(job.status):
        waits = NO_ANSWER_YET if report is None else report.phase_message or FORMING
        waits += mesh.hint(pods, now)
        cause = blocked or Cause(Reason.RENDEZVOUS, waits)
        return GroupPhase(running=False, restarting=False, reason=cause.reason, message=cause.message)
    if report is None and are_there:
        return None
    cause = _why_restarting(job, status, pods, report, blocked)
    waits = NOW + report.phase_message if report is not None and report.phase_message else ""
    phase = GroupPhase(running=False, restarting=True, reason=cause.reason, message=cause.message + waits)
    is_refused = blocked is not None and blocked.reason == Reason.CHILD_REFUSED != cause.reason
    return add_wait(phase, blocked.message) if blocked is not None and is_refused else phase


def _knows_less(report: Report, status: Object) -> bool:
    """Returns whether an agent reports that has just started and has not found its group."""
    return report.is_searching and report.attempt < status.get("attempt", 0)


def _describe_attempt(
    job: Job, status: Object, pods: tuple[Object, ...], report: Report, refusal: str | None, now: float
) -> str:
    """Returns on how many pods the attempt runs, and why the others don't."""
    wanted, size = job.spec.replicas, job.spec.replicas
    if job.spec.elastic is not None and report.replicas is not None and report.replicas > 0:
        size = report.replicas
    count = f"{size} of {wanted} pods" if size < wanted else f"{size} pod{'s' if size > 1 else ''}"
    message = f"attempt {status['attempt']} is running {_count_ranks(job, size)}on {count}"
    if size < wanted and (cause := why_not_running(pods, job, refusal, now)) is not None:
        return f"{message}; {cause.message}"
    if not job.spec.spares:
        return message
    ready = max(0, ready_count(pods, job.trainer_container) - wanted)
    return f"{message}; {ready} of {job.spec.spares} spare{'s' if job.spec.spares > 1 else ''} ready"


def _count_ranks(job: Job, pods: int) -> str:
    """Returns the number of ranks on so many pods; empty where the spec that sets it can't be read."""
    if not job.is_renderable:
        return ""
    ranks = pods * job.spec.processes
    return f"{ranks} rank{'s' if ranks > 1 else ''} "


def add_wait(phase: GroupPhase, wait: str) -> GroupPhase:
    """Returns `phase` with what the group waits for, unless the group runs or waits for nothing."""
    if phase.running or not wait:
        return phase
    return replace(phase, message=phase.message + ("; " if NOW in phase.message else NOW) + wait)


def with_pause(phase: GroupPhase, reason: str, message: str) -> GroupPhase:
    """Returns `phase` of a group whose pod is held back for a while, as `message` explains."""
    if phase.restarting:
        return replace(phase, message=phase.message.partition(NOW)[0] + NOW + message)
    return replace(phase, running=False, reason=reason, message=message)


def _unreachable(job: Job, hint: str) -> GroupPhase:
    """Returns the stored phase with another reason: training may well continue unobserved."""
    running, restarting = (is_true(job.status, kind) for kind in (names.RUNNING, names.RESTARTING))
    return GroupPhase(
        running=running, restarting=restarting, reason=Reason.AGENT_UNREACHABLE, message=UNREACHABLE + hint
    )


def _why_restarting(
    job: Job, status: Object, pods: tuple[Object, ...], report: Report | None, blocked: Cause | None
) -> Cause:
    """Returns why the group does not run: why a pod was lost, or what the agents report."""
    reported = report.phase_reason if report is not None else ""
    remembered = _remembered(job.status, LOST - {Reason.POD_LOST})
    failed = _failure_of_attempt(status, reported)
    if failed is not None:
        lost = failed
    elif remembered is not None:
        lost = remembered
    else:
        unexplained = Cause(reported or Reason.POD_LOST, UNEXPLAINED)
        lost = why_lost(pods, job) or (None if reported else _remembered(job.status, RESIZES)) or unexplained
    blocks = blocked is not None and blocked.reason not in (Reason.PODS_PENDING, lost.reason)
    return blocked if blocked is not None and blocks and lost.message == UNEXPLAINED else lost


def _failure_of_attempt(status: Object, reported: str) -> Cause | None:
    """Returns why the attempt broke; None if it broke because a pod was lost.

    Running out of memory may be either: the agents report a crash or a loss, and the status holds
    what the kubelet reports about it.
    """
    failures = [f for f in status.get("failures") or () if f.get("attempt") == status.get("attempt")]
    killed = [f for f in failures if f.get("reason") == Reason.OOM_KILLED]
    if killed and reported in (Reason.OOM_KILLED, *container_oom.UNEXPLAINED_REASONS):
        return Cause(Reason.OOM_KILLED, str(killed[-1].get("message") or "a process ran out of memory"))
    if not reported or reported in LOST:
        return None
    last = failures[-1] if failures else {}
    return Cause(reported, str(last.get("message") or f"attempt {status.get('attempt')} ended"))


def _remembered(status: Object, reasons: Collection[str]) -> Cause | None:
    """Returns the cause that condition Restarting reported, if it has one of these reasons.

    A pod that showed the reason has been replaced by now, and the status has no field for it.
    Therefore the reason and the message are read back from the condition.
    """
    old = find_condition(status, names.RESTARTING) or {}
    if old.get("status") != "True" or old.get("reason") not in reasons:
        return None
    return Cause(str(old["reason"]), str(old["message"]).partition(NOW)[0])


def set_conditions(status: Object, phase: GroupPhase, conditions: Conditions) -> Object:
    """Returns `status` with conditions Running and Restarting.

    Restarting is set once the group has restarted.
    """
    restarting = phase.restarting or find_condition(status, names.RESTARTING) is not None
    for kind, value in ((names.RESTARTING, phase.restarting), (names.RUNNING, phase.running)):
        if kind == names.RUNNING or restarting:
            status = conditions.set(status, kind, value, phase.reason, phase.message)
    return status
