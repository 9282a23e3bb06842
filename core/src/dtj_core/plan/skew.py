"""A job whose spec this version of the operator can't read, because the CRD that let it in is of another version.

An upgrade or a rollback of operator, chart or CRD ends no job and restarts none. So such a job stays as it is: its pods are
left alone, its agents, its end, a suspension and its deadline are followed, and condition Stalled names what can't be read. An
operator that can read it goes on with it.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api import InvalidJob
from dtj_core.plan import conditions, suspend
from dtj_core.plan.job import Job
from dtj_core.plan.model import Event, Object, Observed

TEMPLATE = "spec.template"


def is_user_error(job: Job, observed: Observed, error: InvalidJob) -> bool:
    """Tells whether the violations are the user's: of a new job, and of its template, which the CRD checks in part only."""
    accepted = bool(job.status.get("conditions")) or suspend.has_run(job, observed)
    return not accepted and all(violation.path.startswith(TEMPLATE) for violation in error.violations)


def describe(job: Job) -> str:
    return f"{job.unreadable}; the CRD is of another version than the operator: install the operator that belongs to it"


def set_stalled(job: Job, status: Object, now: float) -> Object:
    """`status` with condition Stalled, or without it where the spec can be read."""
    if job.unreadable is None:
        return conditions.without(status, names.STALLED)
    return conditions.put(status, names.STALLED, True, Reason.INVALID_SPEC, describe(job), generation=job.generation, now=now)


def events_for_skew(job: Job, status: Object) -> tuple[Event, ...]:
    """The condition, when it is new."""
    if not conditions.is_true(status, names.STALLED) or conditions.is_true(job.status, names.STALLED):
        return ()
    return (Event(type="Warning", reason=Reason.INVALID_SPEC, message=describe(job)),)
