"""Condition AgentUnreachable: the pods run, and no agent of the job has answered the operator for a minute.

The operator learns nothing of such a job, whose training may well continue. The condition is set
once the silence has lasted UNREACHABLE_SECONDS, and removed by the first answer: a restart of the
operator, which has heard nothing yet, leaves it as it is. A job without a running pod has no agent
that could answer, so it never has the condition.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.agent_report import Report
from dtj_core.plan.conditions import Conditions, find_condition, is_true, remove_condition
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.pods import current_pods, is_running
from dtj_core.plan.times import rfc3339

UNREACHABLE_SECONDS = 60.0
# How a request failed: no answer, an HTTP status that is not 200, no `/status` of this job.
SILENT, REFUSED, INVALID = "unreachable", "refused", "invalid"
_NETWORK = (
    "the agents can't be reached or do not answer: check the log of a pod, and whether a NetworkPolicy blocks the "
    f"operator from port {names.AGENT_PORT}"
)
# By the result of the last request: the reason, and what to do.
CAUSES: dict[str, tuple[str, str]] = {
    REFUSED: (
        Reason.AGENT_REFUSED,
        "the agents reject the operator's key: they were started with another master key; suspend and resume the job",
    ),
    INVALID: (
        Reason.AGENT_INVALID,
        f"another program answers at port {names.AGENT_PORT} of the pods, or an agent of another job",
    ),
}


def seconds(observed: Observed, status: Object) -> float:
    """Returns how long the agents have been silent, at least as long as the condition shows."""
    is_known = observed.agent is None and is_true(status, names.AGENT_UNREACHABLE)
    return max(observed.agent_silent_seconds, UNREACHABLE_SECONDS if is_known else 0.0)


def until_overdue(observed: Observed) -> float | None:
    """Returns the seconds until a silence is reported; None if it is already, or there is none."""
    left = UNREACHABLE_SECONDS - observed.agent_silent_seconds
    return left if observed.agent_silent_seconds > 0 and left > 0 else None


def set_unreachable(
    job: Job, observed: Observed, report: Report | None, status: Object, conditions: Conditions
) -> Object:
    """Returns `status` with the condition, or without it."""
    if report is not None or job.spec.suspend:
        return remove_condition(status, names.AGENT_UNREACHABLE)
    if not any(is_running(pod, job.trainer_container) for pod in current_pods(job, observed)):
        return remove_condition(status, names.AGENT_UNREACHABLE)
    if observed.agent_silent_seconds < UNREACHABLE_SECONDS:
        return status
    reason, cure = CAUSES.get(observed.agent_silence, (Reason.AGENT_UNREACHABLE, _NETWORK))
    known = find_condition(status, names.AGENT_UNREACHABLE)
    if known is not None and known.get("reason") == reason:
        # The message has the time since when, which a restart of the operator forgets.
        return status
    since = rfc3339(conditions.now - observed.agent_silent_seconds)
    message = f"no agent has answered since {since}: {cure}"
    return conditions.set(status, names.AGENT_UNREACHABLE, True, reason, message)
