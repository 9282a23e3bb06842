"""Trims objects to the fields that the planner reads, so that a job costs little memory. Pure.

The strings that every object repeats (its keys and a few values) are kept once.
"""

from __future__ import annotations

from typing import Any

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.node_signs import SickNodeSettings, read_node

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# More different keys than all schemas have; free-form maps (labels, environment) can't exhaust memory.
MAX_SHARED = 4096
MAX_SHARED_LENGTH = 64

_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "finalizers",
)  # fmt: skip
_NODE_METADATA = ("name", "uid", "resourceVersion")
_OWNER = ("kind", "name", "uid", "controller")
_LABELS = (names.LABEL_MANAGED_BY, names.LABEL_JOB, names.LABEL_POD_INDEX, names.LABEL_QUEUE)
_CHILD_ANNOTATIONS = (
    names.ANNOTATION_SPEC_HASH,
    names.ANNOTATION_AGENT_IMAGE,
    names.ANNOTATION_REPAIRED,
    names.ANNOTATION_NUDGED,
    names.ANNOTATION_NETWORK_POLICY,
    names.ANNOTATION_AGENT_KEY,
    names.ANNOTATION_AVOIDED_NODES,
    names.ANNOTATION_PLACEMENT,
)
_CONTAINER_STATUS = ("name", "state", "lastState", "ready", "restartCount", "image")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_POD_STATUS = ("phase", "reason", "message", "podIP", "startTime")
_SERVICE_SPEC = ("clusterIP", "publishNotReadyAddresses", "selector")

_shared: dict[str, str] = {}


def trim_job(job: Object) -> Object:
    """Returns the job without what it carries for others."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    annotations = {key: value for key, value in metadata.pop("annotations", {}).items() if key != LAST_APPLIED}
    if annotations:
        metadata["annotations"] = annotations
    return _shared_object({"apiVersion": names.API_VERSION, "kind": names.KIND} | job | {"metadata": metadata})


def trim_runtime(runtime: Object) -> Object:
    """Returns the runtime with its spec whole: a job that takes it copies the spec."""
    kept = {"apiVersion": names.API_VERSION, "kind": names.RUNTIME_KIND, "metadata": _metadata(runtime)}
    return _shared_object(kept | {"spec": runtime.get("spec") or {}})


def trim_stateful_set(stateful_set: Object) -> Object:
    """Returns the StatefulSet: its spec whole, because a repair keeps what others have added to it."""
    kept = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _metadata(stateful_set)}
    status = _pick(stateful_set.get("status") or {}, ("observedGeneration",))
    return _shared_object(kept | {"spec": stateful_set.get("spec") or {}, "status": status})


def trim_service(service: Object) -> Object:
    """Returns the Service with the fields that the agents depend on."""
    kept = {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(service)}
    return _shared_object(kept | {"spec": _pick(service.get("spec") or {}, _SERVICE_SPEC)})


def trim_workload(workload: Object) -> Object:
    """Returns the Workload without its pod templates. Its conditions stay whole: a patch writes them back."""
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    kept_spec = _pick(spec, ("queueName", "active", "priority"))
    kept_spec["podSets"] = [_pick(each, ("name", "count")) for each in spec.get("podSets") or ()]
    kept_status = _pick(status, ("conditions", "admission", "admissionChecks"))
    kept = {"apiVersion": names.KUEUE_API_VERSION, "kind": "Workload", "metadata": _metadata(workload)}
    return _shared_object(kept | {"spec": kept_spec, "status": kept_status})


def trim_pod(pod: Object) -> Object:
    """Returns the pod: where it is, how it runs, and how its containers ended."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept_spec = _pick(spec, ("nodeName", "schedulerName", "terminationGracePeriodSeconds"))
    kept_spec["containers"] = [_container(each) for each in spec.get("containers") or ()]
    if spec.get("initContainers"):
        kept_spec["initContainers"] = [_container(each) for each in spec["initContainers"]]
    claims = [each for each in spec.get("volumes") or () if "persistentVolumeClaim" in each]
    if claims:
        kept_spec["volumes"] = claims
    kept_status = _pick(status, _POD_STATUS)
    if status.get("conditions"):
        kept_status["conditions"] = [_pick(each, _CONDITION) for each in status["conditions"]]
    for key in ("initContainerStatuses", "containerStatuses"):
        if status.get(key):
            kept_status[key] = [_pick(each, _CONTAINER_STATUS) for each in status[key]]
    kept = {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(pod), "spec": kept_spec, "status": kept_status}
    return _shared_object(kept)


def trim_node(node: Object, settings: SickNodeSettings) -> Object:
    """Returns the node's signs alone: a kubelet writes a node's status all the time, and nothing else of it is read."""
    kept: Object = {"apiVersion": "v1", "kind": "Node", "metadata": _pick(node["metadata"], _NODE_METADATA)}
    found = read_node(node, settings)
    return kept if found is None else kept | {"signs": found.signs, "takesPods": found.takes_pods}


def _metadata(child: Object) -> Object:
    metadata = child["metadata"]
    kept = _pick(metadata, _METADATA)
    for key, wanted in (("labels", _LABELS), ("annotations", _CHILD_ANNOTATIONS)):
        picked = _pick(metadata.get(key) or {}, wanted)
        if picked:
            kept[key] = picked
    if metadata.get("ownerReferences"):
        kept["ownerReferences"] = [_pick(owner, _OWNER) for owner in metadata["ownerReferences"]]
    return kept


def _container(container: Object) -> Object:
    kept = _pick(container, ("name", "resources"))
    env = [entry for entry in container.get("env") or () if entry.get("name") == names.ENV_JOB_UID]
    if env:
        kept["env"] = env
    return kept


def _pick(given: Object, keys: tuple[str, ...]) -> Object:
    return {key: given[key] for key in keys if key in given}


def _shared_object(obj: Object) -> Object:
    return {_shared_text(key): _share(item) for key, item in obj.items()}


def _share(value: Any) -> Any:
    """Returns `value` with each key, and each value that is likely to repeat, kept once for all objects."""
    if isinstance(value, dict):
        return _shared_object(value)
    if isinstance(value, list):
        return [_share(item) for item in value]
    if isinstance(value, str):
        return _shared.get(value, value)
    return value


def _shared_text(text: str) -> str:
    if len(_shared) < MAX_SHARED and len(text) <= MAX_SHARED_LENGTH:
        return _shared.setdefault(text, text)
    return _shared.get(text, text)


for _text in ("True", "False", "Running", "Pending", "Ready", "Initialized", "PodScheduled", "ContainersReady"):
    _shared_text(_text)
