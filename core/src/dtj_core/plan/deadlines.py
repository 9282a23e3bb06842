"""The deadline of a job (activeDeadlineSeconds), and the cleanup after its end."""

from __future__ import annotations

from dtj_contract.names import Reason
from dtj_core.api.v1alpha1 import Spec
from dtj_core.plan import children
from dtj_core.plan.model import Action, Delete, Event, Object, Observed, Plan
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.times import unix


def until_deadline(spec: Spec, status: Object, now: float) -> float | None:
    """Returns the seconds until activeDeadlineSeconds has passed; None if there is no limit.

    The number is negative once the deadline has passed.
    """
    limit, started = spec.active_deadline_seconds, unix(status.get("startTime"))
    return None if limit is None or started is None else started + limit - now


def deadline_exceeded(spec: Spec, status: Object, now: float) -> JobResult | None:
    """Returns the failure of a job that has been active for too long."""
    left = until_deadline(spec, status, now)
    if left is None or left > 0:
        return None
    message = f"active for longer than spec.activeDeadlineSeconds ({spec.active_deadline_seconds} s)"
    return JobResult(kind="Failed", reason=Reason.DEADLINE_EXCEEDED, message=message)


def after_end(obj: Object, observed: Observed, now: float) -> Plan:
    """Returns the cleanup of a finished job: its pods (cleanPodPolicy), then the job (TTL).

    A finished job is never started again. Only these two fields of its spec are read: the rest may
    hold anything by now.
    """
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj["status"]
    status = {**status, "observedGeneration": metadata.get("generation", 1)}
    ttl, ended = spec.get("ttlSecondsAfterFinished"), unix(status.get("completionTime"))
    left = None if ttl is None or ended is None else ended + float(ttl) - now
    if left is not None and left <= 0:
        delete = Delete(kind="DistributedTrainingJob", name=metadata["name"], uid=metadata["uid"])
        event = Event(type="Normal", reason=Reason.TTL_EXPIRED, message=f"deleted {ttl} s after the job finished")
        return Plan(actions=(delete,), status=obj["status"], events=(event,))
    return Plan(actions=_clean_up(obj, observed), status=status, requeue_after=left)


def keeps_pods(obj: Object) -> bool:
    """Returns whether the pods stay, idle, after the job has finished."""
    return bool((obj.get("spec") or {}).get("cleanPodPolicy") == "None")


def _clean_up(obj: Object, observed: Observed) -> tuple[Action, ...]:
    """Deletes the StatefulSet, and so the pods, which hold GPUs, and pods that somebody has orphaned.

    Service and Secret cost nothing and go with the job.
    """
    orphans = () if keeps_pods(obj) else children.orphaned_pods(obj["metadata"]["uid"], observed)
    return (
        *_delete_stateful_set(obj, observed),
        *(
            Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
            for pod in orphans
            if "deletionTimestamp" not in pod["metadata"]
        ),
    )


def _delete_stateful_set(obj: Object, observed: Observed) -> tuple[Action, ...]:
    child = observed.stateful_set
    if (
        child is None
        or "deletionTimestamp" in child["metadata"]
        or (keeps_pods(obj) and not _has_new_pod(obj, observed))
    ):
        return ()
    if all(owner.get("uid") != obj["metadata"]["uid"] for owner in child["metadata"].get("ownerReferences") or ()):
        return ()
    return (Delete(kind="StatefulSet", name=child["metadata"]["name"], uid=child["metadata"]["uid"]),)


def _has_new_pod(obj: Object, observed: Observed) -> bool:
    """Returns whether a pod was created after the job finished.

    The pod that was to be kept is gone, and the new one may know of no outcome and train again.
    """
    ended = unix(obj["status"].get("completionTime"))
    created = [unix(pod["metadata"].get("creationTimestamp")) for pod in observed.pods]
    return ended is not None and any(time is not None and time > ended for time in created)
