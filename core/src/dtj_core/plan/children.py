"""The children of a job: Secret, headless Service, StatefulSet and, through it, pods."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api.claim_template import claim_name
from dtj_core.plan import avoided_nodes, shape
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Nudge, Object, Observed, Settings
from dtj_core.plan.pod_template import pod_template
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.times import rfc3339, unix

# Time that pods may be missing before the StatefulSet's controller is woken, and between two
# nudges.
NUDGE_SECONDS = 30.0
SANDBOX = "PodReadyToStartContainers"
# Longest time to mount volumes if none is missing.
STARTING_SECONDS = 10.0
# A pod that waits longer is checked again in the first STARTING_SECONDS of each such interval.
AGAIN_SECONDS = 60.0


def agent_key(job_uid: str, settings: Settings) -> str:
    """Returns the key that the operator and the agents of a job share: 64 hex digits.

    The same job always has the same key.
    """
    return hmac.new(settings.master_key, job_uid.encode(), hashlib.sha256).hexdigest()


def labels(job: Job) -> dict[str, str]:
    """Returns the labels of every child."""
    return {names.LABEL_MANAGED_BY: names.MANAGER, names.LABEL_JOB: job.name}


def _labels_for_queue(job: Job) -> dict[str, str]:
    queue = {} if job.spec.queue_name is None else {names.LABEL_QUEUE: job.spec.queue_name}
    return labels(job) | queue


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


def claim(job: Job) -> Object | None:
    """Returns the claim for checkpoints that the operator creates; None if the job brings its own volume.

    Kubernetes deletes the claim with its owner. A claim that outlives the job has none.
    """
    template = job.spec.checkpoint.volume.claim_template if job.spec.checkpoint else None
    if template is None:
        return None
    spec: Object = {"accessModes": list(template.access_modes), "resources": {"requests": {"storage": template.size}}}
    if template.storage_class_name is not None:
        spec["storageClassName"] = template.storage_class_name
    metadata = _metadata(job, claim_name(job.name))
    if template.when_deleted == "Retain":
        del metadata["ownerReferences"]
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def service(job: Job, settings: Settings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            # The agents look each other up before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(job),
            "ports": [{"name": names.AGENT_PORT_NAME, "port": settings.agent_port, "protocol": "TCP"}],
        },
    }


def stateful_set(
    job: Job, settings: Settings, attempt_floor: int, avoided: tuple[str, ...] = (), pods: int | None = None
) -> Object:
    """Returns the StatefulSet, with as many pods as the spec requests unless `pods` is given.

    `attempt_floor`: the lowest number of its agents' first attempt. `avoided`: nodes that its pods
    are kept from.
    """
    annotations = {names.ANNOTATION_SPEC_HASH: job.spec_hash, names.ANNOTATION_AGENT_IMAGE: settings.agent_image}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job, job.name) | {"annotations": annotations, "labels": _labels_for_queue(job)},
        "spec": {
            "replicas": job.pod_count if pods is None else pods,
            "serviceName": job.name,
            "podManagementPolicy": "Parallel",
            # Applying the template again must never replace a pod that trains.
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(job)},
            "template": pod_template(job, settings, labels(job), attempt_floor, avoided),
        },
    }


def all_children(job: Job, settings: Settings, avoided: tuple[str, ...] = ()) -> tuple[Object, ...]:
    """Returns all children in order of dependency.

    Attempts of a new run are numbered above all earlier ones.
    """
    floor = job.status.get("attempt", 0) + 1
    return secret(job, settings), service(job, settings), stateful_set(job, settings, floor, avoided)


def has_stateful_set(job: Job, observed: Observed) -> bool:
    """Returns whether there is a StatefulSet that this job owns."""
    return observed.stateful_set is not None and job.owns(observed.stateful_set)


def pods_of_previous_run(observed: Observed) -> tuple[Object, ...]:
    """Returns pods of an earlier StatefulSet that have not terminated yet.

    A pod without any owner does not count unless it is terminating: the next StatefulSet adopts it.
    """
    uid = (observed.stateful_set or {"metadata": {}})["metadata"].get("uid")
    owners = ((pod, {o.get("uid") for o in pod["metadata"].get("ownerReferences") or ()}) for pod in observed.pods)
    return tuple(pod for pod, uids in owners if uids - {uid} or (not uids and "deletionTimestamp" in pod["metadata"]))


def orphaned_pods(job_uid: str, observed: Observed) -> tuple[Object, ...]:
    """Returns pods of this very job that have no owner.

    Their StatefulSet was deleted with kubectl delete --cascade=orphan. No garbage collector deletes
    them. A job that is to run leaves them alone, because its next StatefulSet adopts them.
    """
    return tuple(pod for pod in observed.pods if _has_no_owner(pod) and _made_for(pod) == job_uid)


def are_gone(job: Job, observed: Observed) -> bool:
    """Returns whether no StatefulSet of this job and no pod of one is left."""
    return not (has_stateful_set(job, observed) or pods_of_previous_run(observed) or orphaned_pods(job.uid, observed))


def _has_no_owner(pod: Object) -> bool:
    return not pod["metadata"].get("ownerReferences")


def _made_for(pod: Object) -> str:
    """Returns the uid of the job that the pod was created for; empty if the pod names none."""
    env = (
        entry
        for container in (pod.get("spec") or {}).get("containers") or ()
        for entry in container.get("env") or ()
        if entry.get("name") == names.ENV_JOB_UID
    )
    return next((str(entry.get("value") or "") for entry in env), "")


def repairs(
    job: Job, observed: Observed, pods: tuple[Object, ...], wanted: int, now: float, settings: Settings
) -> tuple[Apply, ...]:
    """Returns the children that somebody deleted or changed, as they should be.

    `wanted`: the number of pods that the StatefulSet should have now.

    No repair restarts a running pod. No repair is tried while the API server rejects one. A
    training that runs needs none of them, so it continues without.
    """
    if observed.rejection or observed.refusal:
        return ()
    found = []
    if any(is_waiting_for_volumes(pod, job, now) for pod in pods):
        # The Secret may have been deleted. RBAC does not let the operator read Secrets, so create
        # it if missing. Never overwrite it: running pods may still use a key that was derived from
        # an older master key.
        found.append(Apply(body=_for_create(secret(job, settings)), if_missing=True))
    if observed.service is None or _is_edited_service(observed.service, service(job, settings)):
        found.append(Apply(body=service(job, settings)))
    child = observed.stateful_set
    if child is not None:
        edited = child["spec"].get("replicas") != wanted or _is_edited(child)
        avoided = avoided_nodes.active_nodes(job.status, now)
        moved = avoided_nodes.excluded_nodes(child["spec"].get("template") or {}) != avoided
        if edited or moved or _applied_hash(child) is None:
            # The pods that a job has may fill its quota, which would reject another one in a dry run.
            adds_pods = wanted > child["spec"].get("replicas", 1)
            found.append(Apply(body=_repaired(job, child, settings, avoided, wanted), adds_pods=adds_pods))
    return tuple(found)


def nudges(job: Job, observed: Observed, pods: tuple[Object, ...], now: float) -> tuple[Nudge, ...]:
    """Returns a nudge if pods of the StatefulSet have been missing for a while.

    The nudge yields the reason, or wakes the controller.
    """
    child = observed.stateful_set
    if child is None or len(pods) >= job.pod_count or observed.rejection or observed.refusal:
        return ()
    metadata = child["metadata"]
    last = unix(_annotation(child, names.ANNOTATION_NUDGED)) or unix(metadata.get("creationTimestamp"))
    due = last is not None and now - last >= NUDGE_SECONDS
    return (Nudge(stateful_set=child, time=rfc3339(now)),) if due else ()


def _repaired(job: Job, child: Object, settings: Settings, avoided: tuple[str, ...], pods: int) -> Object:
    """Returns the StatefulSet as it should be, with the agent image of its running pods.

    A group has one agent version. All pods of an elastic group begin with the same size, and the
    agents learn of a new size from the operator's message. Fields that somebody has added and the
    operator does not write (a node selector where there was none) stay.
    """
    image = _annotation(child, names.ANNOTATION_AGENT_IMAGE) or _live_agent_image(child) or settings.agent_image
    floor = job.status.get("attempt", 0) + 1
    body = stateful_set(job, replace(settings, agent_image=image), floor, avoided, pods)
    if job.spec.elastic is not None:
        _keep_variables(body, child, job.trainer_container)
    body["metadata"]["annotations"][names.ANNOTATION_REPAIRED] = str(child["metadata"].get("generation", 1))
    return body


def _keep_variables(body: Object, child: Object, container: str) -> None:
    """Replaces what scaling would change in the template of `body` by what the StatefulSet `child` has."""
    live = {
        entry.get("name"): entry.get("value")
        for entry in _find_container(child, container).get("env") or ()
        if entry.get("name") in (names.ENV_REPLICAS, names.ENV_GENERATION, names.ENV_ATTEMPT_FLOOR)
    }
    for entry in _find_container(body, container)["env"]:
        if live.get(entry["name"]) is not None:
            entry["value"] = live[entry["name"]]


def _find_container(stateful_set: Object, name: str) -> Object:
    containers = stateful_set["spec"].get("template", {}).get("spec", {}).get("containers") or ()
    return next((each for each in containers if each.get("name") == name), {})


def _is_edited(child: Object) -> bool:
    """Returns whether somebody has edited the spec since it was created or last repaired.

    Generations are counted because specs can't be compared: the API server fills in defaults, an
    admission plugin may change what is applied, and another version of the operator renders another
    template. None of these may lead to an apply at every look. Undoing an edit raises the
    generation by one or leaves it.
    """
    undone = _annotation(child, names.ANNOTATION_REPAIRED)
    generation = child["metadata"].get("generation", 1)
    return bool(generation > (int(undone) if undone.isdecimal() else 0) + 1)


def _is_edited_service(child: Object, wanted: Object) -> bool:
    """Returns whether one of the two fields differs that the agents need to find each other."""
    return any(child["spec"].get(field) != wanted["spec"][field] for field in ("selector", "publishNotReadyAddresses"))


def _live_agent_image(child: Object) -> str:
    containers = child["spec"].get("template", {}).get("spec", {}).get("initContainers") or ()
    return next((str(c.get("image") or "") for c in containers if c.get("name") == names.INIT_CONTAINER), "")


def _for_create(child: Object) -> Object:
    """Returns `child` for a create, which has another field manager than our applies.

    A later job of this name may apply its Secret before this one is garbage-collected. That apply
    can't remove an owner reference of another manager, and an object with two controllers is
    rejected: so this owner is no controller.
    """
    owners = [owner | {"controller": False} for owner in child["metadata"]["ownerReferences"]]
    return child | {"metadata": child["metadata"] | {"ownerReferences": owners}}


def is_waiting_for_volumes(pod: Object, job: Job, now: float) -> bool:
    """Returns whether a check of a pod's volumes is due.

    The pod is on a node, and no container of it has started for some time.
    """
    created = unix(pod["metadata"].get("creationTimestamp"))
    if created is None or not is_starting(pod):
        return False
    waited = now - created - STARTING_SECONDS
    return waited >= 0 and waited % AGAIN_SECONDS < STARTING_SECONDS


def is_starting(pod: Object) -> bool:
    """Returns whether a pod on a node has started no container and may still mount volumes."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    begun = any(
        set(container.get("state") or {}) - {"waiting"} or container.get("lastState") for container in containers
    )
    # The kubelet creates a pod's sandbox once its volumes are mounted. After that the pod waits for
    # an image.
    mounted = any(c.get("type") == SANDBOX and c.get("status") == "True" for c in status.get("conditions") or ())
    return bool(spec.get("nodeName")) and "deletionTimestamp" not in metadata and not begun and not mounted


def is_outdated(job: Job, child: Object) -> bool:
    """Returns whether the StatefulSet was created from another spec.

    A spec can change only while the job is suspended, and so can the size of a job that is not
    elastic.
    """
    applied = _applied_hash(child)
    free = {"replicas"} if job.spec.elastic is not None else set()
    return applied is not None and shape.shapes_differ(applied, job.spec_hash, free)


def find_conflict(job: Job, observed: Observed) -> Cause | None:
    """Returns the cause if an object that is not ours bears the name of a child."""
    for child in (observed.stateful_set, observed.service):
        if child is None or job.owns(child):
            continue
        name = f"{child.get('kind') or 'an object'} {job.name}"
        owners = child["metadata"].get("ownerReferences") or ()
        if any(owner.get("kind") == names.KIND and owner.get("name") == job.name for owner in owners):
            return Cause(Reason.PODS_PENDING, f"waiting for {name} of a deleted job of the same name to terminate")
        message = f"{name} already exists and does not belong to this job: delete it, or give the job another name"
        return Cause(Reason.CHILD_CONFLICT, message)
    for pod in observed.pods:
        # A StatefulSet adopts a pod of its name that has no owner. The agent of such a pod rejects
        # those of this job, so the group would never form.
        if _has_no_owner(pod) and "deletionTimestamp" not in pod["metadata"] and _made_for(pod) not in ("", job.uid):
            message = f"pod {pod['metadata']['name']} was created for a deleted job of the same name: delete the pod"
            return Cause(Reason.CHILD_CONFLICT, message)
    return None


def undecided_accelerator(job: Job) -> Cause | None:
    """Returns the cause if the job must decide how to use its accelerators.

    A guess could train on a part of the machine, and nobody would notice.
    """
    question = job.spec.accelerator_question
    if question is None:
        return None
    remedy = " (set spec.suspend to true first, or create a new job)"
    return Cause(Reason.ACCELERATOR_UNDECIDED, question + remedy)


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
