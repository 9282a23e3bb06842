"""The Workload by which a job reserves quota in a queue of Kueue: its form, and what it reports.

Kueue reads of the pod template only what decides about quota and place, so the Workload holds only that.
"""

from __future__ import annotations

from typing import Any

from dtj_contract import names
from dtj_core.plan.conditions import find_condition, is_true
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.placement import TOPOLOGY_GATE, Placement
from dtj_core.plan.times import rfc3339

QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
EVICTED = "Evicted"
REQUEUED = "Requeued"
PODS_READY = "PodsReady"
FINISHED = "Finished"
# Reasons of an eviction after which the job queues again at once. After all others Kueue itself sets Requeued.
AT_ONCE = ("Preempted", "NodeFailures")
MESSAGE_LENGTH = 1024

_POD = (
    "nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName", "overhead", "schedulerName",
    "resourceClaims", "topologySpreadConstraints",
)  # fmt: skip
_CONTAINER = ("name", "image", "resources", "restartPolicy")
_PREFIX = "kueue.x-k8s.io/podset-"
_TOPOLOGY = {f"{_PREFIX}required-topology": "required", f"{_PREFIX}preferred-topology": "preferred"}
_UNCONSTRAINED = f"{_PREFIX}unconstrained-topology"
_SLICE = (f"{_PREFIX}slice-required-topology", f"{_PREFIX}slice-size")


def workload(job: Job, metadata: Object, template: Object) -> Object:
    """Returns the Workload of a job. `metadata`: as of every child. `template`: of its pods, placed nowhere yet."""
    pod_set: Object = {
        "name": names.POD_SET,
        "count": job.pod_count,
        "template": {"metadata": {}, "spec": _slim(template["spec"])},
    }
    topology = _topology_request(template)
    if topology:
        pod_set["topologyRequest"] = topology
    annotations = {names.ANNOTATION_SPEC_HASH: job.spec_hash}
    return {
        "apiVersion": names.KUEUE_API_VERSION,
        "kind": "Workload",
        "metadata": metadata | {"annotations": annotations},
        "spec": {"queueName": job.spec.queue_name, "podSets": [pod_set]},
    }


def _slim(pod: Object) -> Object:
    kept = {key: pod[key] for key in _POD if key in pod}
    for kind in ("initContainers", "containers"):
        if pod.get(kind):
            kept[kind] = [{key: each[key] for key in _CONTAINER if key in each} for each in pod[kind]]
    return kept | {"restartPolicy": "Always"}


def _topology_request(template: Object) -> Object:
    """Returns the request for places near each other that the template's annotations make."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    request: dict[str, Any] = {field: annotations[name] for name, field in _TOPOLOGY.items() if annotations.get(name)}
    if annotations.get(_UNCONSTRAINED) == "true":
        request["unconstrained"] = True
    level, size = (annotations.get(name) for name in _SLICE)
    if level and str(size or "").isdecimal():
        request |= {"podSetSliceRequiredTopology": level, "podSetSliceSize": int(str(size))}
    # Kueue fills one domain after the other in the order of this label: neighbouring ranks are near each other.
    return request and request | {"podIndexLabel": names.LABEL_POD_INDEX}


def pod_count(observed: Object) -> int:
    """Returns the number of pods that a Workload reserves quota for."""
    sets = (observed.get("spec") or {}).get("podSets") or [{}]
    return int(sets[0].get("count", 1))


def has_quota(observed: Object) -> bool:
    return is_true(_status(observed), QUOTA_RESERVED)


def is_admitted(observed: Object) -> bool:
    return is_true(_status(observed), ADMITTED)


def is_evicted(observed: Object) -> bool:
    return is_true(_status(observed), EVICTED)


def is_finished(observed: Object) -> bool:
    return is_true(_status(observed), FINISHED)


def is_active(observed: Object) -> bool:
    return bool((observed.get("spec") or {}).get("active", True))


def message_of(observed: Object, kind: str) -> str:
    """Returns what Kueue reports in this condition; empty if there is none."""
    return str((find_condition(_status(observed), kind) or {}).get("message") or "")


def queue_of(observed: Object) -> str:
    """Returns the ClusterQueue that has admitted the Workload; empty if none has."""
    return str((_status(observed).get("admission") or {}).get("clusterQueue") or "")


def flavors_of(observed: Object) -> tuple[str, ...]:
    """Returns the names of the ResourceFlavors that Kueue has assigned, without repetitions."""
    assigned = _assignment(observed).get("flavors") or {}
    return tuple(sorted({str(name) for name in assigned.values()}))


def find_placement(observed: Observed) -> Placement:
    """Returns where Kueue has placed the pods: by flavors, by admission checks, by topology."""
    found = observed.workload
    if found is None:
        return Placement()
    selector: dict[str, str] = {}
    tolerations: list[Object] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for name in flavors_of(found):
        spec = (observed.flavors.get(name) or {}).get("spec") or {}
        selector |= spec.get("nodeLabels") or {}
        tolerations += spec.get("tolerations") or ()
    for check in _status(found).get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            if update.get("name") == names.POD_SET:
                selector |= update.get("nodeSelector") or {}
                tolerations += update.get("tolerations") or ()
                labels |= update.get("labels") or {}
                annotations |= update.get("annotations") or {}
    gates: tuple[str, ...] = ()
    if _assignment(found).get("topologyAssignment"):
        gates = (TOPOLOGY_GATE,)
        labels |= {"kueue.x-k8s.io/podset": names.POD_SET, "kueue.x-k8s.io/tas": "true"}
        annotations |= {"kueue.x-k8s.io/workload": found["metadata"]["name"]}
    return Placement(
        node_selector=selector, tolerations=tuple(tolerations), labels=labels, annotations=annotations, gates=gates
    )


def released(observed: Object, now: float) -> Object:
    """Returns the status of a Workload whose evicted pods are gone, so that others get its quota."""
    evicted = find_condition(_status(observed), EVICTED) or {}
    reason, message = str(evicted.get("reason") or "Evicted"), str(evicted.get("message") or "")
    conditions = _status(observed).get("conditions") or []
    for kind, value, why in (
        (QUOTA_RESERVED, False, "Pending"),
        (ADMITTED, False, "NoReservation"),
        (REQUEUED, reason in AT_ONCE, reason),
    ):
        conditions = _with(conditions, observed, kind, value, why, message, now)
    if any(each.get("type") == PODS_READY for each in conditions):
        conditions = _with(conditions, observed, PODS_READY, False, "WaitForStart", "the pods are deleted", now)
    return {"admission": None, "conditions": conditions}


def ready(observed: Object, now: float) -> Object:
    """Returns the status of a Workload whose group has begun to train.

    The condition stays while the group restarts: a recovery must not cost the quota.
    """
    message = "the group has begun to train"
    return {"conditions": _with(_conditions(observed), observed, PODS_READY, True, "Started", message, now)}


def is_ready(observed: Object) -> bool:
    return is_true(_status(observed), PODS_READY)


def finished(observed: Object, reason: str, message: str, now: float) -> Object:
    """Returns the status of a Workload whose job has ended, which gives the quota back."""
    return {"conditions": _with(_conditions(observed), observed, FINISHED, True, reason, message, now)}


def _with(
    conditions: list[Object], observed: Object, kind: str, value: bool, reason: str, message: str, now: float
) -> list[Object]:
    text = "True" if value else "False"
    old = next((each for each in conditions if each.get("type") == kind), {})
    condition = {
        "type": kind,
        "status": text,
        "reason": reason,
        "message": message[:MESSAGE_LENGTH],
        "observedGeneration": observed["metadata"].get("generation", 1),
        "lastTransitionTime": old.get("lastTransitionTime") if old.get("status") == text else rfc3339(now),
    }
    return [*(each for each in conditions if each.get("type") != kind), condition]


def _status(observed: Object) -> Object:
    return observed.get("status") or {}


def _conditions(observed: Object) -> list[Object]:
    return list(_status(observed).get("conditions") or ())


def _assignment(observed: Object) -> Object:
    assigned = (_status(observed).get("admission") or {}).get("podSetAssignments") or [{}]
    return dict(assigned[0])
