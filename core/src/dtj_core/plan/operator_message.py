"""The message to the coordinating agent: the budget and size that the spec has now, and why pods were lost."""

from __future__ import annotations

from collections.abc import Iterable

from dtj_contract.operator_message import GroupSize, LostPod, OperatorMessage, RestartBudget
from dtj_core.api.restart import RestartSettings
from dtj_core.plan.model import Object
from dtj_core.plan.pods import why_one_was_lost

# Reason of a pod's status where the kubelet evicted it for disk, memory or processes. A shutdown of
# the node has another one, although both have the condition TerminationByKubelet.
EVICTED = "Evicted"
BY_KUBELET = "TerminationByKubelet"


def operator_message(job: Object, pods: Iterable[Object]) -> OperatorMessage:
    """Returns the message. `job`: as stored, by any version of the CRD. `pods`: those of its StatefulSet."""
    lost = (_lost_pod(pod) for pod in pods)
    return OperatorMessage(_budget(job), tuple(each for each in lost if each is not None), _size(job))


def _budget(job: Object) -> RestartBudget | None:
    default = RestartSettings()
    stored = (job.get("spec") or {}).get("restart") or {}
    return RestartBudget.from_json(
        {
            "generation": job["metadata"].get("generation"),
            "maxRestarts": stored.get("maxRestarts", default.max_restarts),
            "windowSeconds": stored.get("windowSeconds", default.window_seconds),
            "maxRestartsWithoutProgress": stored.get(
                "maxRestartsWithoutProgress", default.max_restarts_without_progress
            ),
        }
    )


def _size(job: Object) -> GroupSize | None:
    spec = job.get("spec") or {}
    if not spec.get("elastic"):
        return None
    size = {"generation": job["metadata"].get("generation"), "replicas": spec.get("replicas", 1)}
    return GroupSize.from_json(size)


def _lost_pod(pod: Object) -> LostPod | None:
    status = pod.get("status") or {}
    cause = why_one_was_lost(pod)
    if cause is None or not status.get("podIP"):
        return None
    return LostPod(pod["metadata"]["name"], status["podIP"], cause.reason, _is_own_fault(status))


def _is_own_fault(status: Object) -> bool:
    """Returns whether the pod was evicted for what it used, as far as its status shows that."""
    disruptions = [c for c in status.get("conditions") or () if c.get("type") == "DisruptionTarget"]
    by_kubelet = all(c.get("reason") == BY_KUBELET for c in disruptions)  # a kubelet before 1.26 sets no condition
    return status.get("reason") == EVICTED and by_kubelet
