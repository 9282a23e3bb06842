"""Taking the pods away: because the job is suspended, or because its spec was changed while it was.

Two steps, so that a crash between them loses nothing: first what the agents know is written to the status, then they go.
"""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan import conditions
from dtj_core.plan.job import Job
from dtj_core.plan.model import Action, Delete, Event, Object, Observed, Plan
from dtj_core.plan.progress import active_seconds

STOPPING = "its pods are being stopped; checkpoints are kept"
WAIT_SECONDS = 2.0  # between two looks at what goes away by itself


def suspend_job(job: Job, observed: Observed, status: Object, now: float, held: str = "") -> Plan:
    """Towards a job without pods. `held`: what keeps a pod of it from going."""
    if not is_stopped(job, observed):
        return delete_pods(job, observed, status, joined(STOPPING, held), now)
    status = between_runs(status, job, now)
    message = "no pods; spec.suspend: false goes on " + ("from the newest checkpoint" if job.spec.checkpoint else "from step 0")
    for kind, value in ((names.RUNNING, False), (names.SUSPENDED, True)):
        status = conditions.put(status, kind, value, Reason.JOB_SUSPENDED, message, generation=job.generation, now=now)
    event = Event(type="Normal", reason=Reason.JOB_SUSPENDED, message=message)
    return Plan(status=status, events=() if conditions.is_true(job.status, names.SUSPENDED) else (event,))


def delete_pods(job: Job, observed: Observed, status: Object, message: str, now: float) -> Plan:
    """One step towards no pods."""
    announced = conditions.reason(job.status, names.RUNNING) == Reason.JOB_SUSPENDED
    for kind in (names.RESTARTING, names.RUNNING):
        if kind == names.RUNNING or conditions.find(status, kind):
            status = conditions.put(status, kind, False, Reason.JOB_SUSPENDED, message, generation=job.generation, now=now)
    if not announced:
        return Plan(status=status, requeue_after=0)
    child = observed.stateful_set
    actions: tuple[Action, ...] = ()
    if child is not None and job.owns(child) and "deletionTimestamp" not in child["metadata"]:
        actions = (Delete(kind="StatefulSet", name=child["metadata"]["name"], uid=child["metadata"]["uid"]),)
    actions += tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        for pod in _orphans(job, observed)
        if "deletionTimestamp" not in pod["metadata"]
    )
    return Plan(actions=actions, status=status, requeue_after=WAIT_SECONDS)


def joined(message: str, held: str) -> str:
    return f"{message}; {held}" if held else message


def has_run(job: Job, observed: Observed) -> bool:
    """There is a StatefulSet of this job's."""
    return observed.stateful_set is not None and job.owns(observed.stateful_set)


def is_stopped(job: Job, observed: Observed) -> bool:
    """Neither a StatefulSet nor a pod that one of ours has left."""
    return not has_run(job, observed) and not leftovers(observed) and not _orphans(job, observed)


def _orphans(job: Job, observed: Observed) -> tuple[Object, ...]:
    """Pods of this very job that nobody owns: their StatefulSet was deleted without them (kubectl delete --cascade=orphan).

    No garbage collector ends them. A job that is to run leaves them alone, for its next StatefulSet adopts them.
    """
    return tuple(pod for pod in observed.pods if not pod["metadata"].get("ownerReferences") and _is_made_for(job, pod))


def _is_made_for(job: Job, pod: Object) -> bool:
    env = (
        entry
        for container in (pod.get("spec") or {}).get("containers") or ()
        for entry in container.get("env") or ()
        if entry.get("name") == names.ENV_JOB_UID
    )
    return any(entry.get("value") == job.uid for entry in env)


def leftovers(observed: Observed) -> tuple[Object, ...]:
    """Pods of an earlier run that are still to go. One without any owner is adopted by the next StatefulSet."""
    uid = (observed.stateful_set or {"metadata": {}})["metadata"].get("uid")
    owners = ((pod, {o.get("uid") for o in pod["metadata"].get("ownerReferences") or ()}) for pod in observed.pods)
    return tuple(pod for pod, uids in owners if uids - {uid} or (not uids and "deletionTimestamp" in pod["metadata"]))


def was_announced(status: Object) -> bool:
    """The pods were, or were about to be, taken away."""
    return Reason.JOB_SUSPENDED in (conditions.reason(status, names.SUSPENDED), conditions.reason(status, names.RUNNING))


def between_runs(status: Object, job: Job, now: float) -> Object:
    """The clock of the deadline stops, and what the agents remembered is gone."""
    active = active_seconds(status, now)
    status = {key: value for key, value in status.items() if key not in ("startTime", "agent")}
    if active:
        status["activeSeconds"] = round(active, 3)
    return {**status, "replicas": job.spec.replicas, "readyReplicas": 0, "ready": f"0/{job.spec.replicas}"}
