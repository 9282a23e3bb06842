"""Whether the group runs, restarts or is still to come, and why: conditions Running and Restarting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan import conditions
from dtj_core.plan.agent_report import Report
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object
from dtj_core.plan.pods import LOST, Cause, why_lost, why_not_running

HEARD = "all pods run; their agents are about to find each other"
UNHEARD = (
    "all pods run; the agent of pod 0 does not answer the operator yet: if that lasts, see its log, "
    f"and whether a NetworkPolicy keeps the operator from port {names.AGENT_PORT}"
)
UNREACHABLE_SECONDS = 60.0
UNREACHABLE = (
    "all pods run, but the agent of pod 0 has not answered the operator for a minute or more, so what the group does is not "
    f"known: see the log of pod 0, and whether a NetworkPolicy keeps the operator from port {names.AGENT_PORT}"
)
NOW = "; now "  # between why the group does not run and what it waits for


@dataclass(frozen=True, kw_only=True)
class GroupPhase:
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
) -> GroupPhase | None:
    """The state of the group; None: nothing new is known (its agent could not be asked just now)."""
    if report is not None and report.phase == "Running":
        message = f"attempt {status['attempt']} runs on {job.spec.replicas} pod{'s' if job.spec.replicas > 1 else ''}"
        return GroupPhase(running=True, restarting=False, reason=Reason.WORKERS_RUNNING, message=message)
    if report is not None and report.phase not in ("Rendezvous", "Stopping") and conditions.find(job.status, names.RUNNING):
        return None  # Finished: the outcome comes with it, or with the termination message
    blocked = why_not_running(pods, job, refusal)
    ran = conditions.is_true(job.status, names.RUNNING) or conditions.is_true(job.status, names.RESTARTING)
    if report is None and blocked is None and silent_seconds >= UNREACHABLE_SECONDS and why_lost(pods, job) is None:
        return _unreachable(job)
    if not ran:
        cause = blocked or Cause(Reason.RENDEZVOUS, UNHEARD if report is None else report.phase_message or HEARD)
        return GroupPhase(running=False, restarting=False, reason=cause.reason, message=cause.message)
    if report is None and blocked is None and why_lost(pods, job) is None:
        return None
    cause = _why_restarting(job, status, pods, report, blocked)
    waits = NOW + report.phase_message if report is not None and report.phase_message else ""
    new = GroupPhase(running=False, restarting=True, reason=cause.reason, message=cause.message + waits)
    is_refused = blocked is not None and blocked.reason == Reason.CHILD_REFUSED != cause.reason
    return add_wait(new, blocked.message) if blocked is not None and is_refused else new


def add_wait(new: GroupPhase, what: str) -> GroupPhase:
    """`new`, if the group does not run, with this as what it waits for."""
    if new.running or not what:
        return new
    return replace(new, message=new.message + ("; " if NOW in new.message else NOW) + what)


def _unreachable(job: Job) -> GroupPhase:
    """As it was, for a training may well go on; only that nobody hears of it is new."""
    running, restarting = (conditions.is_true(job.status, kind) for kind in (names.RUNNING, names.RESTARTING))
    return GroupPhase(running=running, restarting=restarting, reason=Reason.AGENT_UNREACHABLE, message=UNREACHABLE)


def _why_restarting(job: Job, status: Object, pods: tuple[Object, ...], report: Report | None, blocked: Cause | None) -> Cause:
    """Why the group is not running at the moment: why a pod was lost, or what the agents say."""
    said = report.phase_reason if report is not None else ""
    old = conditions.find(job.status, names.RESTARTING) or {}
    if old.get("status") == "True" and old.get("reason") in LOST - {Reason.POD_LOST} and (not said or said in LOST):
        # The pod that could tell is replaced by now.
        lost = Cause(str(old["reason"]), str(old["message"]).partition(NOW)[0])
    elif not said or said in LOST:
        lost = why_lost(pods, job) or Cause(said or Reason.POD_LOST, "a pod was lost")
    else:
        failures = [f for f in status.get("failures") or () if f.get("attempt") == status.get("attempt")]
        lost = Cause(said, str((failures[-1] if failures else {}).get("message") or f"attempt {status.get('attempt')} ended"))
    if blocked is not None and blocked.reason not in (Reason.PODS_PENDING, lost.reason) and lost.message == "a pod was lost":
        return blocked
    return lost


def set_conditions(job: Job, status: Object, new: GroupPhase, now: float) -> Object:
    """`status` with the conditions of `new`."""
    restarting = new.restarting or conditions.find(status, names.RESTARTING) is not None
    for kind, value in ((names.RESTARTING, new.restarting), (names.RUNNING, new.running)):
        if kind == names.RUNNING or restarting:
            status = conditions.put(status, kind, value, new.reason, new.message, generation=job.generation, now=now)
    return status
