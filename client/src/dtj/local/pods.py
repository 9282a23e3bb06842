"""Pod objects as the StatefulSet controller and a kubelet would write them. Pure."""

from __future__ import annotations

import copy
import signal
from datetime import datetime

from dtj.local.container import trainer
from dtj.local.loopback import LOOPBACK
from dtj_contract import names
from dtj_core.plan.model import Object


def timestamp(now: datetime) -> str:
    """Returns RFC 3339 in whole seconds, as the API server writes times."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def new_pod(stateful_set: Object, ordinal: int, *, uid: str, node: str, now: datetime) -> Object:
    """Returns the pod of this ordinal, scheduled and not yet started."""
    template = copy.deepcopy(stateful_set["spec"]["template"])
    owner = stateful_set["metadata"]
    name = f"{owner['name']}-{ordinal}"
    labels = template.get("metadata", {}).get("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": owner["namespace"],
            "uid": uid,
            "creationTimestamp": timestamp(now),
            "labels": {**labels, names.LABEL_POD_INDEX: str(ordinal), "statefulset.kubernetes.io/pod-name": name},
            "annotations": template.get("metadata", {}).get("annotations", {}),
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "name": owner["name"],
                    "uid": owner["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {**template["spec"], "hostname": name, "nodeName": node},
        "status": {
            "phase": "Pending",
            "conditions": [_condition("PodScheduled", True, now)],
            "startTime": timestamp(now),
            "containerStatuses": [
                _status(trainer(template["spec"])["name"], 0, {"waiting": {"reason": "ContainerCreating"}}, {})
            ],
        },
    }


def set_running(pod: Object, now: datetime) -> None:
    """Records that the container was started or restarted."""
    before = container_status(pod)
    ended = before["state"].get("terminated") or before["lastState"].get("terminated")
    restarts = before["restartCount"] + (1 if ended else 0)
    last = {"terminated": ended} if ended else {}
    pod["status"] |= {
        "phase": "Running",
        "podIP": LOOPBACK,
        "podIPs": [{"ip": LOOPBACK}],
        "hostIP": LOOPBACK,
        "conditions": [_condition("PodScheduled", True, now), _condition("Ready", True, now)],
        "containerStatuses": [_status(before["name"], restarts, {"running": {"startedAt": timestamp(now)}}, last)],
    }


def set_terminated(pod: Object, exit_code: int, message: str, now: datetime) -> None:
    """Records that the container has ended.

    `exit_code` is Python's, negative for a signal; Kubernetes reports 128 + the signal's number.
    """
    before = container_status(pod)
    ended = {
        "exitCode": exit_code if exit_code >= 0 else 128 - exit_code,
        "reason": "Completed" if exit_code == 0 else "Error",
        "startedAt": before["state"].get("running", {}).get("startedAt", timestamp(now)),
        "finishedAt": timestamp(now),
    }
    if message:
        ended["message"] = message
    pod["status"]["conditions"] = [_condition("PodScheduled", True, now), _condition("Ready", False, now)]
    pod["status"]["containerStatuses"] = [
        _status(before["name"], before["restartCount"], {"terminated": ended}, before["lastState"])
    ]


def set_backing_off(pod: Object) -> None:
    """Records that the ended container waits for its next start."""
    before = container_status(pod)
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting the container"}}
    pod["status"]["containerStatuses"] = [_status(before["name"], before["restartCount"], state, before["state"])]


def set_deleted(pod: Object, grace_seconds: float, now: datetime) -> None:
    """Records that the pod's deletion was requested."""
    pod["metadata"] |= {"deletionTimestamp": timestamp(now), "deletionGracePeriodSeconds": int(grace_seconds)}


def container_status(pod: Object) -> Object:
    """Returns the status of the container that runs the agent."""
    found: Object = pod["status"]["containerStatuses"][0]
    return found


def pod_state(pod: Object) -> str:
    """Returns the state for the table, as `kubectl get pods` would show it."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    state = container_status(pod)["state"]
    if "waiting" in state and container_status(pod)["lastState"]:
        return "CrashLoopBackOff"
    if ended := state.get("terminated"):
        code = ended["exitCode"]
        return signal.Signals(code - 128).name if code > 128 else f"Exit {code}"
    return "Running" if "running" in state else "Pending"


def _condition(kind: str, true: bool, now: datetime) -> Object:
    return {"type": kind, "status": "True" if true else "False", "lastTransitionTime": timestamp(now)}


def _status(name: str, restarts: int, state: Object, last: Object) -> Object:
    running = "running" in state
    return {
        "name": name,
        "ready": running,
        "started": running,
        "restartCount": restarts,
        "state": state,
        "lastState": last,
    }
