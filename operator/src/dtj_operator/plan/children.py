"""What the job's children should be: the Secret, the headless Service and the StatefulSet."""

from __future__ import annotations

import base64
import hashlib
import hmac

from dtj_agent import names
from dtj_agent.names import Reason
from dtj_operator.plan.job import Job
from dtj_operator.plan.model import Object, Observed, Settings
from dtj_operator.plan.pods import Cause
from dtj_operator.plan.template import pod_template


def agent_key(job_uid: str, settings: Settings) -> str:
    """The key that the agents of a job share with each other and the operator: 64 hex digits, the same each time."""
    return hmac.new(settings.master_key, job_uid.encode(), hashlib.sha256).hexdigest()


def labels(job: Job) -> dict[str, str]:
    """Labels of every child."""
    return {names.LABEL_MANAGED_BY: names.MANAGER, names.LABEL_JOB: job.name}


def selector(job: Job) -> dict[str, str]:
    return {names.LABEL_JOB: job.name}


def secret(job: Job, settings: Settings) -> Object:
    key = base64.b64encode(agent_key(job.uid, settings).encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, job.secret_name),
        "type": "Opaque",
        "data": {names.SECRET_KEY: key},
    }


def service(job: Job, settings: Settings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            # The agents look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(job),
            "ports": [{"name": names.AGENT_PORT_NAME, "port": settings.agent_port, "protocol": "TCP"}],
        },
    }


def stateful_set(job: Job, settings: Settings, attempt_floor: int) -> Object:
    """`attempt_floor`: the first attempt of the agents in it has at least this number."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job, job.name) | {"annotations": {names.ANNOTATION_SPEC_HASH: job.spec_hash}},
        "spec": {
            "replicas": job.spec.replicas,
            "serviceName": job.name,
            "podManagementPolicy": "Parallel",
            # A pod that trains is never replaced because its template was applied again.
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(job)},
            "template": pod_template(job, settings, labels(job), attempt_floor),
        },
    }


def all_of(job: Job, settings: Settings) -> tuple[Object, ...]:
    """Every child, in the order in which they need each other. The attempts of a new run go on above those before it."""
    floor = job.status.get("attempt", 0) + 1
    return secret(job, settings), service(job, settings), stateful_set(job, settings, floor)


def repairs(job: Job, observed: Observed, settings: Settings) -> tuple[Object, ...]:
    """What somebody deleted or changed, as it should be. Nothing of it restarts a pod that runs."""
    found = []
    if observed.service is None:
        found.append(service(job, settings))
    child = observed.stateful_set
    if child is not None and (child["spec"].get("replicas") != job.spec.replicas or _applied_hash(child) is None):
        found.append(stateful_set(job, settings, job.status.get("attempt", 0) + 1))
    return tuple(found)


def is_outdated(job: Job, child: Object) -> bool:
    """The StatefulSet was made from another spec. The API lets a spec change only while the job is suspended."""
    return _applied_hash(child) not in (None, job.spec_hash)


def conflict(job: Job, observed: Observed) -> Cause | None:
    """A child's name is taken by an object that is not ours."""
    for child in (observed.stateful_set, observed.service):
        if child is None or job.owns(child):
            continue
        what = f"{child.get('kind') or 'an object'} {job.name}"
        owners = child["metadata"].get("ownerReferences") or ()
        if any(owner.get("kind") == names.KIND and owner.get("name") == job.name for owner in owners):
            return Cause(Reason.PODS_PENDING, f"{what} of a deleted job of this name is still on its way out")
        return Cause(Reason.CHILD_CONFLICT, f"{what} exists and is not this job's: delete it, or give the job another name")
    return None


def _applied_hash(child: Object) -> str | None:
    value: str | None = (child["metadata"].get("annotations") or {}).get(names.ANNOTATION_SPEC_HASH)
    return value


def _metadata(job: Job, name: str) -> Object:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels(job),
        "ownerReferences": [job.owner_reference],
    }
