"""Follows a job whose spec this version can't read, because another CRD version admitted it.

An upgrade or a rollback of operator, chart or CRD fails no job and restarts none. The pods of
such a job are left alone. Its agents, its outcome, a suspension and its deadline are still
followed, and condition Stalled names what can't be read. An operator that can read the spec takes
the job over.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api import InvalidJob
from dtj_core.plan import children
from dtj_core.plan.conditions import Conditions, is_true, remove_condition
from dtj_core.plan.job import Job
from dtj_core.plan.model import Event, Object, Observed

TEMPLATE = "spec.template"


def is_user_error(job: Job, observed: Observed, error: InvalidJob) -> bool:
    """Returns whether the violations are the user's.

    Only those in the template of a new job are: the CRD checks a template only in part.
    """
    accepted = bool(job.status.get("conditions")) or children.has_stateful_set(job, observed)
    return not accepted and all(violation.path.startswith(TEMPLATE) for violation in error.violations)


def describe(job: Job) -> str:
    cause = "the CRD and the operator have different versions: install the operator that matches the CRD"
    runtime = (job.status.get("runtime") or {}).get("name")
    if runtime is not None:
        fits = f"the job does not fit its {names.RUNTIME_KIND} {runtime} as status.runtime has it: change the job"
        cause = f"{fits} while it is suspended; or {cause}"
    return f"{job.unreadable}; {cause}"


def set_stalled(job: Job, status: Object, conditions: Conditions) -> Object:
    """Returns `status` with condition Stalled, or without it if the spec can be read."""
    if job.unreadable is None:
        return remove_condition(status, names.STALLED)
    return conditions.set(status, names.STALLED, True, Reason.INVALID_SPEC, describe(job))


def events_for_skew(job: Job, status: Object) -> tuple[Event, ...]:
    """Returns an event if condition Stalled is new."""
    if not is_true(status, names.STALLED) or is_true(job.status, names.STALLED):
        return ()
    return (Event(type="Warning", reason=Reason.INVALID_SPEC, message=describe(job)),)
