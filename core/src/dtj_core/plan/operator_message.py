"""The message to the coordinating agent: what the spec has now, and why pods and containers ended."""

from __future__ import annotations

from collections.abc import Iterable

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_contract.operator_message import GroupSize, LostPod, OperatorMessage, RestartBudget
from dtj_core.api.restart import RestartSettings
from dtj_core.api.template import find_trainer_container
from dtj_core.plan import container_oom
from dtj_core.plan.model import Object
from dtj_core.plan.pods import why_one_was_lost
from dtj_core.plan.times import unix

# Reason of a pod's status where the kubelet evicted it for disk, memory or processes. A shutdown of
# the node has another one, although both have the condition TerminationByKubelet.
EVICTED = "Evicted"
BY_KUBELET = "TerminationByKubelet"


# A container's last state stays until the container ends again; by then its cause is that of no new loss.
KILL_SECONDS = 120.0

_DEFAULT = RestartSettings()


def operator_message(job: Object, pods: Iterable[Object], now: float) -> OperatorMessage:
    """Returns the message. `job`: as stored, by any version of the CRD. `pods`: those of its StatefulSet."""
    template = (job.get("spec") or {}).get("template") or {}
    container = str(find_trainer_container(template).get("name", names.CONTAINER))
    lost = (_lost_pod(pod) or _killed_container(pod, container, now) for pod in pods)
    return OperatorMessage(_budget(job), tuple(each for each in lost if each is not None), _size(job))


def _budget(job: Object) -> RestartBudget | None:
    stored = (job.get("spec") or {}).get("restart") or {}
    return RestartBudget.from_json(
        {
            "generation": job["metadata"].get("generation"),
            "maxRestarts": stored.get("maxRestarts", _DEFAULT.max_restarts),
            "windowSeconds": stored.get("windowSeconds", _DEFAULT.window_seconds),
            "maxRestartsWithoutProgress": stored.get(
                "maxRestartsWithoutProgress", _DEFAULT.max_restarts_without_progress
            ),
            "checkpointKeep": (job["spec"].get("checkpoint") or {}).get("keep"),
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
    return LostPod(pod["metadata"]["name"], status["podIP"], cause.reason, is_own_fault(status))


def _killed_container(pod: Object, container: str, now: float) -> LostPod | None:
    """Returns the end of the trainer container if the kernel has just killed it for memory."""
    status = pod.get("status") or {}
    for state in status.get("containerStatuses") or ():
        if state.get("name") != container or not status.get("podIP"):
            continue
        finished = unix(container_oom.last_oom_kill(state).get("finishedAt"))
        if finished is not None and now - finished < KILL_SECONDS:
            return LostPod(pod["metadata"]["name"], status["podIP"], Reason.OOM_KILLED, False, finished)
    return None


def is_own_fault(status: Object) -> bool:
    """Returns whether the pod was evicted for what it used, as far as its status shows that."""
    disruptions = [c for c in status.get("conditions") or () if c.get("type") == "DisruptionTarget"]
    by_kubelet = all(c.get("reason") == BY_KUBELET for c in disruptions)  # a kubelet before 1.26 sets no condition
    return status.get("reason") == EVICTED and by_kubelet
