"""What the job's children should be: the Secret, the headless Service and the StatefulSet."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api.v1alpha1 import GPUS
from dtj_core.plan import shape
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Nudge, Object, Observed, Settings
from dtj_core.plan.pod_template import pod_template
from dtj_core.plan.pods import Cause
from dtj_core.plan.times import rfc3339, unix

NUDGE_SECONDS = 30.0  # that pods may be missing before the StatefulSet's controller is woken, and between two times
SANDBOX = "PodReadyToStartContainers"
STARTING_SECONDS = 10.0  # what mounting takes at most, where nothing is missing
AGAIN_SECONDS = 60.0  # a pod that waits longer is asked for again in the first STARTING_SECONDS of each of these


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
    annotations = {names.ANNOTATION_SPEC_HASH: job.spec_hash, names.ANNOTATION_AGENT_IMAGE: settings.agent_image}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job, job.name) | {"annotations": annotations},
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


def all_children(job: Job, settings: Settings) -> tuple[Object, ...]:
    """Every child, in the order in which they need each other. The attempts of a new run go on above those before it."""
    floor = job.status.get("attempt", 0) + 1
    return secret(job, settings), service(job, settings), stateful_set(job, settings, floor)


def repairs(job: Job, observed: Observed, pods: tuple[Object, ...], now: float, settings: Settings) -> tuple[Apply, ...]:
    """What somebody deleted or changed, as it should be. Nothing of it restarts a pod that runs.

    Nor is a training that runs ended because a repair is refused: it can do without, until the shell tries again.
    """
    if observed.rejection or observed.refusal:
        return ()
    found = []
    if any(is_waiting_for_volumes(pod, job, now) for pod in pods):
        # Perhaps for the Secret, if somebody has deleted it: we may not read it, so we can't know. It would have the key that
        # the pods which run have. One that is there is left alone: those pods may be of another master key's time.
        found.append(Apply(body=_for_create(secret(job, settings)), if_missing=True))
    if observed.service is None or _is_edited_service(observed.service, service(job, settings)):
        found.append(Apply(body=service(job, settings)))
    child = observed.stateful_set
    if child is not None:
        edited = child["spec"].get("replicas") != job.spec.replicas or _is_edited(child)
        if edited or _applied_hash(child) is None:
            found.append(Apply(body=_repaired(job, child, settings)))
    return tuple(found)


def nudges(job: Job, observed: Observed, pods: tuple[Object, ...], now: float) -> tuple[Nudge, ...]:
    """What the StatefulSet needs where pods of it have been missing for a while: an answer why, or a push."""
    child = observed.stateful_set
    if child is None or len(pods) >= job.spec.replicas or observed.rejection or observed.refusal:
        return ()
    metadata = child["metadata"]
    last = unix(_annotation(child, names.ANNOTATION_NUDGED)) or unix(metadata.get("creationTimestamp"))
    due = last is not None and now - last >= NUDGE_SECONDS
    return (Nudge(stateful_set=child, time=rfc3339(now)),) if due else ()


def _repaired(job: Job, child: Object, settings: Settings) -> Object:
    """The StatefulSet as it should be, its pods with the agent that those which run have: one group, one version of it.

    What somebody has added and the operator does not write (a node selector where there was none) stays.
    """
    image = _annotation(child, names.ANNOTATION_AGENT_IMAGE) or _live_agent_image(child) or settings.agent_image
    body = stateful_set(job, replace(settings, agent_image=image), job.status.get("attempt", 0) + 1)
    body["metadata"]["annotations"][names.ANNOTATION_REPAIRED] = str(child["metadata"].get("generation", 1))
    return body


def _is_edited(child: Object) -> bool:
    """Somebody else has changed its spec since it was made, or since that was last undone.

    Counted and not compared: the API server fills in defaults, an admission plugin may change what is applied, and another
    version of the operator renders another template; none of these may lead to an apply at every look. Undoing an edit raises
    the generation by one, or leaves it.
    """
    undone = _annotation(child, names.ANNOTATION_REPAIRED)
    generation = child["metadata"].get("generation", 1)
    return bool(generation > (int(undone) if undone.isdecimal() else 0) + 1)


def _is_edited_service(child: Object, wanted: Object) -> bool:
    """Without these two the agents don't find each other."""
    return any(child["spec"].get(field) != wanted["spec"][field] for field in ("selector", "publishNotReadyAddresses"))


def _live_agent_image(child: Object) -> str:
    containers = child["spec"].get("template", {}).get("spec", {}).get("initContainers") or ()
    return next((str(c.get("image") or "") for c in containers if c.get("name") == names.INIT_CONTAINER), "")


def _for_create(child: Object) -> Object:
    """`child` for a create. Another field manager than that of our applies owns what it writes, so that a later job of this
    name, whose apply may come before this one is collected, can't take its owner reference out: two controllers are refused.
    """
    owners = [owner | {"controller": False} for owner in child["metadata"]["ownerReferences"]]
    return child | {"metadata": child["metadata"] | {"ownerReferences": owners}}


def is_waiting_for_volumes(pod: Object, job: Job, now: float) -> bool:
    """It is on a node, for some time no container of it has been started, and it is time to look what it waits for."""
    made = unix(pod["metadata"].get("creationTimestamp"))
    if made is None or not is_starting(pod):
        return False
    waited = now - made - STARTING_SECONDS
    return waited >= 0 and waited % AGAIN_SECONDS < STARTING_SECONDS


def is_starting(pod: Object) -> bool:
    """It is on a node, its volumes may not be mounted yet, and no container of it has been started."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    begun = any(set(container.get("state") or {}) - {"waiting"} or container.get("lastState") for container in containers)
    # The kubelet makes a pod's sandbox once its volumes are mounted: what it waits for after that is an image.
    mounted = any(c.get("type") == SANDBOX and c.get("status") == "True" for c in status.get("conditions") or ())
    return bool(spec.get("nodeName")) and "deletionTimestamp" not in metadata and not begun and not mounted


def is_outdated(job: Job, child: Object) -> bool:
    """The StatefulSet was made from another spec. The API lets a spec change only while the job is suspended."""
    applied = _applied_hash(child)
    return applied is not None and shape.shapes_differ(applied, job.spec_hash)


def find_conflict(job: Job, observed: Observed) -> Cause | None:
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


def undecided_accelerator(job: Job) -> Cause | None:
    """What the job must decide before it has children: a guess would train on a part of the machine, and nobody would see it."""
    accelerator = job.spec.undecided_accelerator
    if accelerator is None:
        return None
    return Cause(
        Reason.ACCELERATOR_UNDECIDED,
        f"the container that trains asks for {accelerator}: set spec.processesPerPod and spec.backend, which are derived from "
        f"{' and '.join(GPUS)} alone (spec.suspend: true first, or a new job)",
    )


def _applied_hash(child: Object) -> str | None:
    return _annotation(child, names.ANNOTATION_SPEC_HASH) or None


def _annotation(child: Object, name: str) -> str:
    return str((child["metadata"].get("annotations") or {}).get(name, ""))


def _metadata(job: Job, name: str) -> Object:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels(job),
        "ownerReferences": [job.owner_reference],
    }
