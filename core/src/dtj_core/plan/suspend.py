"""Deletes the pods of a job that is suspended, or whose spec was changed meanwhile.

Two steps, so that a crash between them loses nothing: first the status is written with all that the
agents reported, then the pods are deleted.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan import children
from dtj_core.plan.conditions import Conditions, find_condition, is_true
from dtj_core.plan.job import Job
from dtj_core.plan.job_status import is_stop_announced, reset_between_runs
from dtj_core.plan.model import Action, Delete, Event, Object, Observed, Plan
from dtj_core.plan.stuck_pods import append_hint

STOPPING = "deleting the pods; checkpoints are kept"
# Pause before the next check of objects that are being deleted.
WAIT_SECONDS = 2.0


def suspend_job(job: Job, observed: Observed, status: Object, conditions: Conditions, hint: str = "") -> Plan:
    """Returns the next step towards a job without pods.

    `hint`: what a person must do about a pod that does not go.
    """
    if not children.are_gone(job, observed):
        return delete_pods(job, observed, status, append_hint(STOPPING, hint), conditions)
    status = reset_between_runs(status, job, conditions.now)
    start = "the newest checkpoint" if job.spec.checkpoint else "step 0"
    message = f"all pods are deleted; set spec.suspend to false to resume from {start}"
    for kind, value in ((names.RUNNING, False), (names.SUSPENDED, True)):
        status = conditions.set(status, kind, value, Reason.JOB_SUSPENDED, message)
    event = Event(type="Normal", reason=Reason.JOB_SUSPENDED, message=message)
    return Plan(status=status, events=() if is_true(job.status, names.SUSPENDED) else (event,))


def delete_pods(
    job: Job,
    observed: Observed,
    status: Object,
    message: str,
    conditions: Conditions,
    reason: str = Reason.JOB_SUSPENDED,
) -> Plan:
    """Returns the next step towards no pods: announce the deletion in the status, or delete."""
    for kind in (names.RESTARTING, names.RUNNING):
        if kind == names.RUNNING or find_condition(status, kind):
            status = conditions.set(status, kind, False, reason, message)
    if not is_stop_announced(job.status):
        return Plan(status=status, requeue_after=0)
    child = observed.stateful_set
    actions: tuple[Action, ...] = ()
    if child is not None and job.owns(child) and "deletionTimestamp" not in child["metadata"]:
        actions = (Delete(kind="StatefulSet", name=child["metadata"]["name"], uid=child["metadata"]["uid"]),)
    actions += tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        for pod in children.orphaned_pods(job.uid, observed)
        if "deletionTimestamp" not in pod["metadata"]
    )
    return Plan(actions=actions, status=status, requeue_after=WAIT_SECONDS)
