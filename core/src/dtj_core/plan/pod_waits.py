"""Waits of a pod that no container status explains: the scheduler, the kubelet, volumes, init containers.

Their details are in events of the pod, which the operator may not read. The pod's conditions show
the phase that takes too long, and the message names the command that shows the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtj_contract.names import Reason
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

# A scheduler and a kubelet usually need less than a second, and a mount a few.
OVERDUE_SECONDS = 60.0
READY_TO_START = "PodReadyToStartContainers"  # by kubelets from 1.29 on
# Sources of volumes that have to exist, or be reachable, and the key of their name.
SOURCES = {
    "persistentVolumeClaim": ("claim", "claimName"), "secret": ("Secret", "secretName"),
    "configMap": ("ConfigMap", "name"), "nfs": ("NFS server", "server"), "csi": ("CSI driver", "driver"),
    "hostPath": ("path on the node", "path"),
}  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """Reason and message of a condition: why something is not as it should be."""

    reason: str
    message: str


def terminating(pod: Object) -> Cause | None:
    """Returns that a pod is terminating, and in the way of its replacement; None if it is not."""
    if "deletionTimestamp" not in pod["metadata"]:
        return None
    return Cause(Reason.PODS_PENDING, f"pod {_name(pod)} is terminating; its replacement starts after that")


def rejected_by_node(pod: Object) -> Cause | None:
    """Returns why a node rejected a pod that had been assigned to it; None if none has."""
    status = pod.get("status") or {}
    if status.get("phase") != "Failed":
        return None
    reason = Reason.POD_EVICTED if status.get("reason") == "Evicted" else Reason.POD_REJECTED
    detail = ": ".join(str(part) for part in (status.get("reason"), status.get("message")) if part)
    return Cause(reason, f"pod {_name(pod)} failed on node {_node(pod) or '?'}: {detail or 'no reason'}; recreating it")


def unconsidered(pod: Object, now: float) -> Cause | None:
    """Returns the cause if no scheduler has looked at the pod for too long."""
    if _node(pod) or _condition(pod, "PodScheduled") or not _is_overdue(pod, now):
        return None
    scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
    return Cause(
        Reason.UNSCHEDULABLE,
        f"pod {_name(pod)}: scheduler {scheduler} has not looked at it for {OVERDUE_SECONDS:.0f} s; check that a "
        "scheduler of this name runs (schedulerName in spec.template)",
    )


def init_container(pod: Object) -> Cause | None:
    """Returns which init container has failed, or runs; None if all have ended well, or none has begun."""
    for status in (pod.get("status") or {}).get("initContainerStatuses") or ():
        name, state = status.get("name"), status.get("state") or {}
        ended = state.get("terminated") or {}
        waits = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
        if waits:
            ended = (status.get("lastState") or {}).get("terminated") or {}
        if waits or ended.get("exitCode"):
            return Cause(
                Reason.INIT_CONTAINER_FAILED,
                f"pod {_name(pod)}: init container {name} exited with {ended.get('exitCode')}; restarting it; "
                f"see kubectl logs {_name(pod)} -c {name} --previous",
            )
        # A sidecar is an init container that is meant to run.
        if "running" in state and not status.get("started"):
            return Cause(Reason.PODS_PENDING, f"pod {_name(pod)} is starting: its init container {name} is running")
    return None


def not_set_up(pod: Object, now: float) -> Cause | None:
    """Returns the cause if a node has not prepared the pod (volumes, network) for too long."""
    status, node = pod.get("status") or {}, _node(pod)
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    begun = any(set(each.get("state") or {}) - {"waiting"} or each.get("lastState") for each in statuses)
    if not node or begun or not _is_overdue(pod, now):
        return None
    ready = _condition(pod, READY_TO_START).get("status")
    look = f"see kubectl describe pod {_name(pod)}"
    if ready is None and not statuses:
        return Cause(
            Reason.NODE_SILENT,
            f"pod {_name(pod)}: node {node} has not begun to start it for {OVERDUE_SECONDS:.0f} s; check its kubelet: "
            f"kubectl describe node {node}",
        )
    if ready == "True":
        return Cause(Reason.PODS_PENDING, f"pod {_name(pod)} is starting: node {node} pulls an image; {look}")
    volumes = ", ".join(_volumes(pod))
    # An older kubelet has no such condition, and may be at the image already.
    missing = "mounted its volumes or set up its network"
    missing = missing if ready is not None else "mounted its volumes, set up its network or pulled its image"
    return Cause(
        Reason.MOUNT_PENDING,
        f"pod {_name(pod)}: node {node} has not {missing} for {OVERDUE_SECONDS:.0f} s"
        + (f"; it needs {volumes}" if volumes else "")
        + f"; {look} (FailedMount, FailedAttachVolume, FailedCreatePodSandBox)",
    )


def add_claim_hint(cause: Cause, pods: tuple[Object, ...]) -> Cause:
    """Returns `cause` with the remedy, where pods on several nodes wait for one claim.

    The access mode of a claim is in an object that the operator may not read, so the hint is conditional.
    """
    if cause.reason not in (Reason.MOUNT_PENDING, Reason.UNSCHEDULABLE):
        return cause
    nodes: dict[str, set[str]] = {}
    for pod in pods:
        for name in _claims(pod):
            nodes.setdefault(name, set()).add(_node(pod))
    shared = sorted(name for name, where in nodes.items() if len(where) > 1 and f"claim {name}" in cause.message)
    if not shared and "volume node affinity conflict" in cause.message:
        shared = sorted(name for name, where in nodes.items() if where)
    if not shared:
        return cause
    return Cause(
        cause.reason,
        f"{cause.message}; pods on several nodes need claim {shared[0]}: if it is ReadWriteOnce, or its volume is "
        "bound to one node, use a ReadWriteMany claim, or keep all pods on one node",
    )


def _claims(pod: Object) -> list[str]:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    names = ((volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes)
    return [str(name) for name in names if name]


def until_overdue(pods: tuple[Object, ...], now: float) -> float | None:
    """Returns the seconds until the next pod has waited for too long; None if none can."""
    times = (_since(pod) for pod in pods if (pod.get("status") or {}).get("phase", "Pending") == "Pending")
    left = [since + OVERDUE_SECONDS - now for since in times if since is not None]
    return min((time for time in left if time > 0), default=None)


def _volumes(pod: Object) -> list[str]:
    found = []
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source, (kind, key) in SOURCES.items():
            name = (volume.get(source) or {}).get(key)
            if name:
                found.append(f"{kind} {name}")
    return found


def _is_overdue(pod: Object, now: float) -> bool:
    since = _since(pod)
    return since is not None and now - since >= OVERDUE_SECONDS


def _since(pod: Object) -> float | None:
    """Returns when the pod's present wait began: its creation, or its assignment to a node."""
    created = unix(pod["metadata"].get("creationTimestamp"))
    return unix(_condition(pod, "PodScheduled").get("lastTransitionTime")) or created


def _condition(pod: Object, kind: str) -> Object:
    return next((c for c in (pod.get("status") or {}).get("conditions") or () if c.get("type") == kind), {})


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
