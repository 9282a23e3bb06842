"""Reasons why a pod does not run or was lost, and pods that will never start their agent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dtj_contract.names import Reason
from dtj_core.plan import pod_waits
from dtj_core.plan.avoided_nodes import why_avoided
from dtj_core.plan.container_oom import OOM_KILLED, describe, last_oom_kill
from dtj_core.plan.job import Job, is_owned
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.times import rfc3339, unix

# Crashes of an agent that never ran. With the kubelet's back-off they take about five minutes.
START_CRASHES = 5
# A container that ran for longer counts as started.
START_SECONDS = 60.0
PULL = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "ImageInspectError", "SignatureValidationFailed",
}  # fmt: skip
CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
NOT_STARTED = {"StartError", "ContainerCannotRun"}
DISRUPTIONS = {  # reasons of the pod condition DisruptionTarget
    "PreemptionByScheduler": Reason.PREEMPTED,
    "PreemptionByKubeScheduler": Reason.PREEMPTED,
    "EvictionByEvictionAPI": Reason.POD_EVICTED,
    "TerminationByKubelet": Reason.POD_EVICTED,
    "DeletionByTaintManager": Reason.NODE_LOST,
    "DeletionByPodGC": Reason.NODE_LOST,
}
LOST = frozenset({
    Reason.POD_LOST, Reason.POD_DELETED, Reason.OOM_KILLED, Reason.NODE_AVOIDED, Reason.NODE_SICK,
    *DISRUPTIONS.values(),
})  # fmt: skip


def current_pods(job: Job, observed: Observed) -> tuple[Object, ...]:
    """Returns the pods of the present StatefulSet by ordinal.

    Pods of an earlier run, or of an earlier job of the same name, are left out.
    """
    if observed.stateful_set is None or not job.owns(observed.stateful_set):
        return ()
    return tuple(sorted(pods_of(observed.stateful_set, observed.pods), key=ordinal))


def pods_of(stateful_set: Object, pods: Iterable[Object]) -> list[Object]:
    """Returns those of `pods` that this very StatefulSet owns."""
    uid = stateful_set["metadata"]["uid"]
    return [pod for pod in pods if is_owned(pod, uid)]


def ordinal(pod: Object) -> int:
    number = str(pod["metadata"]["name"]).rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def is_running(pod: Object, container: str) -> bool:
    """Returns whether the trainer container runs and the pod is not being deleted."""
    return "deletionTimestamp" not in pod["metadata"] and "running" in (_status(pod, container).get("state") or {})


def running_count(pods: tuple[Object, ...], container: str) -> int:
    return sum(is_running(pod, container) for pod in pods)


def may_run_without_some(job: Job, pods: tuple[Object, ...]) -> bool:
    """Returns whether the group may run although pods are missing, thanks to spares or elasticity."""
    if job.pod_count == job.least_pods:
        return False
    return running_count(pods, job.trainer_container) >= job.least_pods


def ready_count(pods: tuple[Object, ...], container: str) -> int:
    return sum(is_running(pod, container) and bool(_status(pod, container).get("ready")) for pod in pods)


def why_not_running(pods: tuple[Object, ...], job: Job, refusal: str | None = None, now: float = 0.0) -> Cause | None:
    """Returns the first reason, by ordinal, why not all pods run; None if enough of them do.

    A pod that waits only for the others of its gang comes last, because their reason is the cause.
    Spares are not waited for. `refusal`: the API server's message where it rejects a child.
    """
    if running_count(pods, job.trainer_container) >= job.spec.replicas:
        return None
    first: Cause | None = None
    for pod in sorted(pods, key=_would_fit):
        cause = _why_waiting(pod, job, now)
        if cause is not None and cause.reason != Reason.PODS_PENDING:
            return pod_waits.add_claim_hint(cause, pods)
        first = first or cause
    if len(pods) < job.pod_count and refusal is not None:
        return Cause(Reason.CHILD_REFUSED, refused_message(refusal))
    if len(pods) < job.pod_count:
        hint = "if this persists: kubectl describe statefulset " + job.name
        return Cause(Reason.PODS_PENDING, "waiting for the StatefulSet to create all of its pods; " + hint)
    return first


def refused_message(refusal: str) -> str:
    return "the API server rejected a child of the job; retrying: " + refusal


def why_lost(pods: tuple[Object, ...], job: Job) -> Cause | None:
    """Returns why a pod that ran is gone or terminating; None if all pods are in place.

    A pod beyond the size of the job, which was scaled down, is not lost.
    """
    pods = tuple(pod for pod in pods if ordinal(pod) < job.pod_count)
    present = {ordinal(pod) for pod in pods}
    for pod in pods:
        cause = why_one_was_lost(pod)
        if cause is not None and cause.reason == Reason.POD_DELETED:
            avoided = why_avoided(job.status, _node(pod))
            where = f"pod {pod['metadata']['name']} is recreated away from node {_node(pod)}"
            return cause if avoided is None else Cause(avoided[0], where + avoided[1])
        if cause is not None:
            return cause
        if not is_running(pod, job.trainer_container) and last_oom_kill(_status(pod, job.trainer_container)):
            return Cause(Reason.OOM_KILLED, describe(pod, job.trainer_container))
    missing = sorted(set(range(job.pod_count)) - present)
    if missing:
        return Cause(Reason.POD_LOST, f"pod {job.name}-{missing[0]} is missing; waiting for its replacement")
    return None


def why_one_was_lost(pod: Object) -> Cause | None:
    """Returns why Kubernetes ends or has ended the pod; None if it does not."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    disruption = _condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        reason = DISRUPTIONS.get(str(disruption.get("reason")), Reason.POD_EVICTED)
        return Cause(reason, f"pod {name}: {disruption.get('message') or disruption.get('reason')}")
    if _is_on_silent_node(pod):
        return Cause(Reason.NODE_LOST, f"pod {name}: its node {_node(pod)} is not responding")
    if "deletionTimestamp" in pod["metadata"]:
        return Cause(Reason.POD_DELETED, f"pod {name} was deleted")
    if status.get("phase") == "Failed":
        reason = Reason.POD_EVICTED if status.get("reason") == "Evicted" else Reason.POD_LOST
        return Cause(reason, f"pod {name}: {status.get('message') or status.get('reason') or 'the pod failed'}")
    return None


def unstartable(pods: tuple[Object, ...], job: Job, now: float) -> JobResult | None:
    """Returns the failure of a job whose pod can't start its agent: no agent can report it."""
    if may_run_without_some(job, pods):
        return None
    for pod in pods:
        for status in _starting(pod, job.trainer_container):
            ended = _last_failure(status)
            if not ended:
                continue
            name = f"container {status.get('name')} of pod {pod['metadata']['name']}"
            detail = str(ended.get("message") or "").strip()
            if ended.get("reason") in NOT_STARTED and re.search(r"not found|no such file", detail):
                message = f"{name} can't be started: {detail}. The image must have python3 on its PATH"
                return _unstartable_result(Reason.ENTRYPOINT_NOT_FOUND, message, pod, ended, now)
            crashes = int(status.get("restartCount") or 0)
            allowed = job.spec.restart.max_restarts
            limit = allowed if job.status.get("attempt") else min(START_CRASHES, allowed)
            if crashes > limit and _is_backing_off(status) and _run_seconds(ended) < START_SECONDS:
                how = f"exit code {ended.get('exitCode')}" + (f", {ended['reason']}" if ended.get("reason") else "")
                message = (
                    f"{name} crashed {crashes} times during startup ({how}): {detail or 'see kubectl logs --previous'}"
                )
                return _unstartable_result(Reason.RESTART_BUDGET_SPENT, message, pod, ended, now, crashes)
    return None


def _unstartable_result(
    reason: str, message: str, pod: Object, ended: Object, now: float, crashes: int = 0
) -> JobResult:
    why = Reason.OOM_KILLED if ended.get("reason") == OOM_KILLED else Reason.AGENT_CRASHED
    failure: Object = {
        "ordinal": ordinal(pod),
        "pod": pod["metadata"]["name"],
        "node": _node(pod),
        "reason": why if reason == Reason.RESTART_BUDGET_SPENT else reason,
        "message": message[:1024],
        "time": rfc3339(unix(ended.get("finishedAt")) or now),
    }
    if isinstance(ended.get("exitCode"), int):
        failure["exitCode"] = ended["exitCode"]
    return JobResult(kind="Failed", reason=reason, message=message, failures=(failure,), crashes=crashes)


def _why_waiting(pod: Object, job: Job, now: float) -> Cause | None:
    container = job.trainer_container
    if is_running(pod, container):
        return None
    found = (
        pod_waits.terminating(pod)
        or pod_waits.rejected_by_node(pod)
        or _why_unscheduled(pod, job)
        or pod_waits.unconsidered(pod, now)
        or _why_no_container(pod, container)
        or pod_waits.init_container(pod)
        or pod_waits.not_set_up(pod, now)
    )
    return found or Cause(Reason.PODS_PENDING, f"pod {pod['metadata']['name']} is starting")


def _would_fit(pod: Object) -> bool:
    """Returns whether the scheduler has a node for the pod, but none for others of its gang (Volcano's reason)."""
    return bool(_condition(pod, "PodScheduled").get("reason") == "Schedulable")


def _why_unscheduled(pod: Object, job: Job) -> Cause | None:
    name = pod["metadata"]["name"]
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("reason") == "SchedulingGated":
        queue = f" until queue {job.spec.queue_name} admits the job" if job.spec.queue_name else ""
        return Cause(Reason.QUEUED, f"pod {name} is held back by a scheduling gate{queue}")
    if scheduled.get("status") == "False":
        detail = str(scheduled.get("message") or "")
        claim = re.search(r'persistentvolumeclaim "([^"]+)" not found', detail)
        if claim:
            message = f"pod {name}: PersistentVolumeClaim {claim[1]} does not exist in this namespace"
            return Cause(Reason.VOLUME_CLAIM_NOT_FOUND, message)
        return Cause(Reason.UNSCHEDULABLE, f"pod {name}: {detail}")
    return None


def _why_no_container(pod: Object, container: str) -> Cause | None:
    """Returns why a container can't be created, or crashed."""
    name = pod["metadata"]["name"]
    init = {each.get("name") for each in (pod.get("status") or {}).get("initContainerStatuses") or ()}
    for status in _starting(pod, container):
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason, detail = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in PULL:
            return Cause(Reason.IMAGE_PULL_FAILED, f"pod {name}: {detail or reason} (image {status.get('image')})")
        if reason in CONFIG:
            return Cause(Reason.CONTAINER_CONFIG_ERROR, f"pod {name}: {detail or reason}")
        ended = _last_failure(status)
        if reason == "CrashLoopBackOff" and ended.get("reason") == OOM_KILLED:
            return Cause(Reason.OOM_KILLED, describe(pod, str(status.get("name"))))
        if reason == "CrashLoopBackOff" and status.get("name") not in init:
            return Cause(
                Reason.AGENT_CRASHED,
                f"pod {name}: container {status.get('name')} exited with {ended.get('exitCode')}; restarting it; "
                f"see kubectl logs {name} -c {status.get('name')} --previous",
            )
    return None


def never_ran(pod: Object, container: str) -> bool:
    """Returns whether the trainer container of a pod has never been started."""
    status = _status(pod, container)
    return not (set(status.get("state") or {}) - {"waiting"} or status.get("lastState") or status.get("restartCount"))


def _starting(pod: Object, container: str) -> list[Object]:
    """Returns the statuses of the containers that the agent needs, so not of the user's sidecars."""
    return [*((pod.get("status") or {}).get("initContainerStatuses") or ()), _status(pod, container)]


def _status(pod: Object, container: str) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((s for s in statuses if s.get("name") == container), {})


def _condition(pod: Object, kind: str) -> Object:
    return next((c for c in (pod.get("status") or {}).get("conditions") or () if c.get("type") == kind), {})


def _is_on_silent_node(pod: Object) -> bool:
    """Returns whether the node controller, and nothing else, has set Ready to False.

    The controller does so when a node has not reported for 40 s. A kubelet sets ContainersReady to
    False along with Ready, and a readiness gate gives a reason.
    """
    ready, containers = _condition(pod, "Ready"), _condition(pod, "ContainersReady")
    return ready.get("status") == "False" and containers.get("status") == "True" and not ready.get("reason")


def _last_failure(status: Object) -> Object:
    """Returns how the container last failed; {} if it never did."""
    for state in ("state", "lastState"):
        ended: Any = (status.get(state) or {}).get("terminated")
        if ended and (ended.get("exitCode") != 0 or ended.get("reason") in NOT_STARTED):
            return dict(ended)
    return {}


def _is_backing_off(status: Object) -> bool:
    return ((status.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff"


def _run_seconds(ended: Object) -> float:
    started, finished = unix(ended.get("startedAt")), unix(ended.get("finishedAt"))
    return finished - started if started is not None and finished is not None else 0.0


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
