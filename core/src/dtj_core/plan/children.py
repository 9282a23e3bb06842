"""The children of a job: Secret, NetworkPolicy, headless Service, StatefulSet and, through it, pods."""

from __future__ import annotations

import base64

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.api.claim_template import claim_name
from dtj_core.plan import agent_keys, network_policy, pod_group, shape
from dtj_core.plan import workload as workloads
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Nudge, Object, Observed, Settings
from dtj_core.plan.placement import Placement, place
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


def labels(job: Job) -> dict[str, str]:
    """Returns the labels of every child."""
    return {names.LABEL_MANAGED_BY: names.MANAGER, names.LABEL_JOB: job.name}


def _labels_for_queue(job: Job, settings: Settings) -> dict[str, str]:
    by_kueue = job.spec.queue_name is not None and not settings.kueue
    queue = {names.LABEL_QUEUE: str(job.spec.queue_name)} if by_kueue else {}
    return labels(job) | queue


def selector(job: Job) -> dict[str, str]:
    return {names.LABEL_JOB: job.name}


def secret(job: Job, settings: Settings, child: Object | None = None) -> Object:
    """Returns the Secret of a new run, or of the StatefulSet `child`, whose agents have a key already."""
    key = agent_key(job.uid, settings) if child is None else agent_keys.key_of(job.uid, child, settings)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, job.secret_name),
        "type": "Opaque",
        "data": {names.SECRET_KEY: base64.b64encode(key.encode()).decode()},
    }


def claim(job: Job) -> Object | None:
    """Returns the claim for checkpoints that the operator creates; None if the job brings its own volume.

    Kubernetes deletes the claim with its owner. A claim that outlives the job has none.
    """
    volume = job.spec.checkpoint.volume if job.spec.checkpoint else None
    template = volume.claim_template if volume else None
    if template is None:
        return None
    spec: Object = {"accessModes": list(template.access_modes), "resources": {"requests": {"storage": template.size}}}
    if template.storage_class_name is not None:
        spec["storageClassName"] = template.storage_class_name
    own = metadata(job, claim_name(job.name))
    if template.when_deleted == "Retain":
        del own["ownerReferences"]
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": own, "spec": spec}


def service(job: Job, settings: Settings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            # The agents look each other up before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(job),
            "ports": [{"name": names.AGENT_PORT_NAME, "port": settings.agent_port, "protocol": "TCP"}],
        },
    }


def stateful_set(
    job: Job,
    settings: Settings,
    attempt_floor: int,
    avoided: tuple[str, ...] = (),
    pods: int | None = None,
    placement: Placement = Placement(),  # noqa: B008 (frozen)
) -> Object:
    """Returns the StatefulSet, with as many pods as the spec requests unless `pods` is given.

    `attempt_floor`: the lowest number of its agents' first attempt. `avoided`: nodes that its pods
    are kept from. `placement`: where a queue has placed them.
    """
    template = pod_template(job, settings, labels(job), attempt_floor, avoided)
    place(template, placement)
    pod_group.join(job, template)
    annotations = {names.ANNOTATION_SPEC_HASH: job.spec_hash, names.ANNOTATION_AGENT_IMAGE: settings.agent_image}
    annotations[names.ANNOTATION_AGENT_KEY] = agent_keys.digest(agent_key(job.uid, settings))
    annotations |= network_policy.policy_annotations(job, settings)
    if placed := placement.encode():
        annotations[names.ANNOTATION_PLACEMENT] = placed
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, job.name) | {"annotations": annotations, "labels": _labels_for_queue(job, settings)},
        "spec": {
            "replicas": job.pod_count if pods is None else pods,
            "serviceName": job.name,
            "podManagementPolicy": "Parallel",
            # Applying the template again must never replace a pod that trains.
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(job)},
            "template": template,
        },
    }


def all_children(
    job: Job,
    settings: Settings,
    avoided: tuple[str, ...] = (),
    placement: Placement = Placement(),  # noqa: B008 (frozen)
) -> tuple[Object, ...]:
    """Returns all children in order of dependency.

    Attempts of a new run are numbered above all earlier ones.
    """
    floor = job.status.get("attempt", 0) + 1
    policy = network_policy.network_policy(job, settings, metadata(job, job.policy_name))
    group = pod_group.pod_group(job, metadata(job, job.name))
    return (
        secret(job, settings),
        *(() if policy is None else (policy,)),
        service(job, settings),
        *((group,) if group else ()),
        stateful_set(job, settings, floor, avoided, placement=placement),
    )


def workload(job: Job, settings: Settings) -> Apply:
    """Returns the creation of the Workload that queues the job, after a dry run of a pod."""
    pods = stateful_set(job, settings, job.status.get("attempt", 0) + 1)
    body = workloads.workload(job, metadata(job, job.name), pods["spec"]["template"])
    return Apply(body=body, if_missing=True, pods_of=pods)


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


def nudges(job: Job, observed: Observed, pods: tuple[Object, ...], now: float) -> tuple[Nudge, ...]:
    """Returns a nudge if pods of the StatefulSet have been missing for a while.

    The nudge yields the reason, or wakes the controller. A controller that has not come to the
    StatefulSet yet does not sleep: it has much to do, and a nudge would give it more.
    """
    child = observed.stateful_set
    if child is None or len(pods) >= job.pod_count or observed.rejection or observed.refusal:
        return ()
    metadata = child["metadata"]
    if (child.get("status") or {}).get("observedGeneration", 0) < metadata.get("generation", 1):
        return ()
    last = unix(annotation(child, names.ANNOTATION_NUDGED)) or unix(metadata.get("creationTimestamp"))
    due = last is not None and now - last >= NUDGE_SECONDS
    return (Nudge(stateful_set=child, time=rfc3339(now)),) if due else ()


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
    applied = applied_hash(child)
    free = {"replicas"} if job.spec.elastic is not None else set()
    return applied is not None and shape.shapes_differ(applied, job.spec_hash, free)


def find_conflict(job: Job, observed: Observed) -> Cause | None:
    """Returns the cause if an object that is not ours bears the name of a child."""
    for child in (observed.stateful_set, observed.service):
        if child is None or job.owns(child):
            continue
        name = f"{child.get('kind') or 'an object'} {job.name}"
        if is_of_namesake(job, child):
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


def is_of_namesake(job: Job, child: Object) -> bool:
    """Returns whether an object that is not ours belongs to an earlier job of the same name."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == names.KIND and owner.get("name") == job.name for owner in owners)


def undecided_accelerator(job: Job) -> Cause | None:
    """Returns the cause if the job must decide how to use its accelerators.

    A guess could train on a part of the machine, and nobody would notice.
    """
    question = job.spec.accelerator_question
    if question is None:
        return None
    remedy = " (set spec.suspend to true first, or create a new job)"
    return Cause(Reason.ACCELERATOR_UNDECIDED, question + remedy)


def applied_hash(child: Object) -> str | None:
    """Returns the shape of the spec that a StatefulSet was created from."""
    return annotation(child, names.ANNOTATION_SPEC_HASH) or None


def annotation(child: Object, name: str) -> str:
    """Returns an annotation; "" if there is none."""
    return str((child["metadata"].get("annotations") or {}).get(name, ""))


def metadata(job: Job, name: str) -> Object:
    """Returns the metadata of a child."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels(job),
        "ownerReferences": [job.owner_reference],
    }
