"""Decides which runtime a job runs with, and when it takes another one.

A job takes its runtime once, before its first child is created: the runtime's spec is copied into the status, and
the children follow only once that is stored. A change of the runtime changes no job that has one, whenever the
operator is killed. A job takes a runtime again if its pods are gone and

    runtimeRef.name has changed             (possible while the job is suspended)
    runtimeRef.updatePolicy is OnResume     when the job is resumed

By default a resumed job keeps what it has: a queue suspends and resumes jobs, and their training must continue in
the image in which it began.
"""

from __future__ import annotations

import hashlib
import json

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api import InvalidJob, read
from dtj_core.api.runtime import REF, merge
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.times import rfc3339

DIGITS = 12
ON_RESUME = "OnResume"


def effective(job: Object) -> Object:
    """Returns the job with its runtime in the spec; the job as stored if it has not taken a runtime yet."""
    taken = (job.get("status") or {}).get("runtime") or {}
    reference = _reference(job)
    if not reference or taken.get("name") != reference.get("name"):
        return job
    return {**job, "spec": merge(taken.get("spec") or {}, job["spec"])}


def is_taken(job: Object) -> bool:
    """Returns whether an effective job needs no runtime any more."""
    return not _reference(job)


def take(job: Object, observed: Observed, now: float) -> Object | None:
    """Returns `status.runtime` of a job that takes its runtime now; None if it can't, or needs none."""
    if is_taken(job) or (job.get("spec") or {}).get("suspend") or why_not(job, observed) is not None:
        return None
    assert observed.runtime is not None
    metadata, spec = observed.runtime["metadata"], observed.runtime.get("spec") or {}
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return {
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "generation": metadata.get("generation", 1),
        "hash": hashlib.sha256(text.encode()).hexdigest()[:DIGITS],
        "time": rfc3339(now),
        "spec": spec,
    }


def why_not(job: Object, observed: Observed) -> Cause | None:
    """Returns what an effective job waits for before it can take its runtime; None if nothing is in the way."""
    if is_taken(job):
        return None
    name = _reference(job).get("name")
    if observed.runtime is None and not observed.runtimes_served:
        message = (
            f"spec.runtimeRef.name: the operator can't list {names.RUNTIME_PLURAL}: apply crds/ of this version, and"
            f" grant its service account list and watch on {names.RUNTIME_PLURAL}.{names.GROUP} in the cluster"
        )
        return Cause(Reason.RUNTIME_NOT_FOUND, message)
    if observed.runtime is None:
        message = (
            f"spec.runtimeRef.name: there is no {names.RUNTIME_KIND} {name}: create it (kubectl get"
            f" {names.RUNTIME_SHORT_NAME} lists those that exist), or suspend the job and change the name"
        )
        return Cause(Reason.RUNTIME_NOT_FOUND, message)
    try:
        read({**job, "spec": merge(observed.runtime.get("spec") or {}, job["spec"])})
    except InvalidJob as error:
        remedy = "change the runtime, or the job while it is suspended"
        return Cause(Reason.RUNTIME_INCOMPLETE, f"with {names.RUNTIME_KIND} {name}: {error}; {remedy}")
    return None


def missing(job: Job, observed: Observed) -> Cause | None:
    """Returns what a job waits for before its children can be created with its runtime."""
    metadata = {"name": job.name, "namespace": job.namespace}
    obj = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": job.stored_spec}
    return why_not(obj, observed)


def forget(job: Object, status: Object) -> Object:
    """Returns `status` of a job that is suspended, and whose pods are gone, without a runtime that it will take again.

    `job`: as stored.
    """
    if _reference(job).get("updatePolicy") != ON_RESUME:
        return status
    return {name: value for name, value in status.items() if name != "runtime"}


def _reference(job: Object) -> Object:
    found: Object = (job.get("spec") or {}).get(REF) or {}
    return found
