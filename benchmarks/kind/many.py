"""30 of 32 pods deleted at once: a job of this project beside StatefulSets of the same pods without an agent.

Each trial creates its own pods, so no arm runs beside another. One arm of ours has the chart's
agent.delivery=image-volume. The floors are StatefulSets whose container only logs that it has started: one of the image
and the resources alone, and one of the very pod template that the operator renders, with its init container and its
volumes.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.kind.group import CONFINED, MOUNT, SCRIPTS, SECURITY, VOLUME, Group, environ, image, namespace
from hack.cluster.shell import run
from hack.images.deploy import NAMESPACE, RELEASE
from tests.chaos.kind_report import count_ready
from tests.e2e.kit import Job, Kubectl, Object, wait_until

PODS, LOST = 32, 30
SETTLED_SECONDS = 5.0
"""How long an attempt is watched after its first steps: another attempt for the same loss would begin meanwhile."""
OURS, IN_VOLUME, SAME_TEMPLATE, BARE = (
    "dtj",
    "dtj, agent in a volume",
    "StatefulSet of dtj's pod template",
    "StatefulSet",
)
GRACE = 30
RESOURCES: Object = {"requests": {"cpu": "20m", "memory": "48Mi"}}
SCRIPT = ["python3", "-u", f"{MOUNT}/light_script.py"]
SCRIPT_VOLUME: Object = {"name": "script", "configMap": {"name": "bench"}}
SCRIPT_MOUNT: Object = {"name": "script", "mountPath": MOUNT, "readOnly": True}
HERE = Path(__file__).resolve().parents[2]


def measure(arm: str, trial: int) -> dict[str, Any]:
    """Returns the figures of one trial of an arm."""
    scripts = (SCRIPTS / "light_script.py", HERE / "tests/chaos/plain_script.py")
    with namespace("many", *scripts) as (kubectl, shared):
        return ARMS[arm](kubectl, shared, lost_ordinals(trial))


def lost_ordinals(trial: int) -> list[int]:
    """Returns the ordinals to delete: the group's coordinator, at ordinal 0, stays in every second trial."""
    first = PODS - LOST if trial % 2 == 0 else 0
    return list(range(first, first + LOST))


def _job(kubectl: Kubectl, shared: Path) -> Job:
    container: Object = {
        "name": "trainer", "command": SCRIPT, "resources": RESOURCES, "volumeMounts": [SCRIPT_MOUNT],
        "env": environ(LIGHT_STEP_SECONDS=0.25, TORCHELASTIC_USE_AGENT_STORE=False),
    }  # fmt: skip
    spec: Object = {
        "replicas": PODS, "image": image(), "backend": "gloo", "warmWorkers": "Never",
        "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 50, "keep": 3},
        "template": {"spec": {
            "containers": [container], "volumes": [SCRIPT_VOLUME], "terminationGracePeriodSeconds": GRACE,
        }},
    }  # fmt: skip
    return Job(kubectl, "many", shared, spec)


def _ours(kubectl: Kubectl, shared: Path, lost: list[int]) -> dict[str, Any]:
    job = _job(kubectl, shared).create()
    group = Group(kubectl, job.folder, "training.dtj.dev/job-name=many", PODS, lambda: job.get().get("status"))
    group.wait_whole()
    group.wait_ready()
    before, first = group.look().newest, job.get()["status"]
    since, deleted = _delete(kubectl, "many", lost)
    found = group.recovered(since, before)
    found.pop("lost_steps", None)  # the script saves nothing
    time.sleep(SETTLED_SECONDS)
    group.look()
    group.wait_ready()
    status = job.get()["status"]
    begun = {one.attempt for one in group.records.begins if one.attempt > before}
    found |= {
        "attempts": max(status["attempt"] - first.get("attempt", 0), len(begun)),
        "counted": status["restarts"]["counted"] - first.get("restarts", {}).get("counted", 0),
        "deleting": deleted,
        "recoveries": [one for one in status.get("recoveries", []) if one["attempt"] > before],
        "kubelet": _kubelet(group.pods(), "many", lost),
    }
    if not found.get("hang"):
        newest = group.records.newest
        found["begun"] = max(one.time for one in group.records.begins if one.attempt == newest) - since
    return found


def _in_volume(kubectl: Kubectl, shared: Path, lost: list[int]) -> dict[str, Any]:
    with _delivery("image-volume"):
        return _ours(kubectl, shared, lost)


@contextlib.contextmanager
def _delivery(how: str) -> Iterator[None]:
    """Upgrades the release so that new jobs get their agents in this way; rolls it back at the end."""
    release = ("helm", "--namespace", NAMESPACE)
    wait = ("--wait", "--timeout=150s", "--history-max=5")
    chart = str(HERE / "charts/dtj-operator")
    run([*release, "upgrade", RELEASE, chart, "--reuse-values", f"--set=agent.delivery={how}", *wait], timeout=180)
    try:
        yield
    finally:
        run([*release, "rollback", RELEASE, *wait], timeout=180)


def _bare(kubectl: Kubectl, shared: Path, lost: list[int]) -> dict[str, Any]:
    container: Object = {
        "name": "trainer", "image": image(), "command": SCRIPT, "resources": RESOURCES,
        "env": environ(LIGHT_ALONE=1, LIGHT_FOLDER=f"{VOLUME}/alone"), "securityContext": CONFINED,
        "volumeMounts": [SCRIPT_MOUNT, {"name": "checkpoint", "mountPath": VOLUME}],
    }  # fmt: skip
    pod: Object = {
        "containers": [container], "securityContext": SECURITY, "terminationGracePeriodSeconds": GRACE,
        "automountServiceAccountToken": False, "enableServiceLinks": False,
        "volumes": [SCRIPT_VOLUME, {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "shared"}}],
    }  # fmt: skip
    return _alone(kubectl, shared, pod, lost)


def _same_template(kubectl: Kubectl, shared: Path, lost: list[int]) -> dict[str, Any]:
    job = _job(kubectl, shared).create()
    made = wait_until("the StatefulSet of a job", lambda: kubectl.get("statefulset", "many"), timeout=60)
    secret = kubectl.get("secret", "many-dtj-agent")
    assert secret is not None
    job.delete()
    wait_until("the job's pods to end", lambda: not kubectl.list("pods"), timeout=120)
    wait_until("the job's Secret to go", lambda: not kubectl.get("secret", "many-dtj-agent"), timeout=120)
    pod = copy.deepcopy(made["spec"]["template"]["spec"])
    (container,) = pod["containers"]
    container["command"] = SCRIPT
    container.pop("args", None)
    container["env"] = environ(LIGHT_ALONE=1, LIGHT_FOLDER=f"{VOLUME}/alone")
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "many-dtj-agent"}, "data": secret["data"]}
    )
    return _alone(kubectl, shared, pod, lost)


def _alone(kubectl: Kubectl, shared: Path, pod: Object, lost: list[int]) -> dict[str, Any]:
    """Measures a StatefulSet of pods that only log their start."""
    labels = {"app": "alone"}
    service: Object = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "alone"},
        "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
    }  # fmt: skip
    sets: Object = {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "alone"},
        "spec": {
            "replicas": PODS, "serviceName": "alone", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }  # fmt: skip
    kubectl.apply(service, sets)
    group = Group(kubectl, shared / "alone", "app=alone", PODS, lambda: _waiting(kubectl))
    group.wait_ready()
    since, deleted = _delete(kubectl, "alone", lost)

    def begun() -> list[float]:
        return [one.time for one in group.look().begins if one.time > since]

    try:
        group.wait("the lost pods run", lambda _: len(begun()) == len(lost), 180)
    except AssertionError as error:
        print(error, flush=True)
        return {"hang": True}
    found = {"seconds": max(begun()) - since, "deleting": deleted}
    group.wait_ready()
    return found | {"kubelet": _kubelet(group.pods(), "alone", lost)}


def _waiting(kubectl: Kubectl) -> list[str]:
    return [pod["metadata"]["name"] for pod in kubectl.list("pods") if not count_ready([pod])]


def _delete(kubectl: Kubectl, name: str, ordinals: list[int]) -> tuple[float, float]:
    """Deletes pods in one call. Returns when it began, and how long the call took."""
    pods, since = [f"{name}-{ordinal}" for ordinal in ordinals], time.monotonic()
    kubectl("delete", "pod", *pods, "--wait=false", "--grace-period=1")
    return since, time.monotonic() - since


def _kubelet(pods: dict[str, Object], name: str, lost: list[int]) -> dict[str, float]:
    """Returns when the last of the new pods reached each condition, in seconds since the first was created.

    Kubernetes keeps these times in whole seconds.
    """
    new = [pods[f"{name}-{ordinal}"] for ordinal in lost]
    first = min(_seconds(pod["metadata"]["creationTimestamp"]) for pod in new)
    out = {"created": max(_seconds(pod["metadata"]["creationTimestamp"]) for pod in new) - first}
    for kind in ("PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready"):
        times = [
            _seconds(condition["lastTransitionTime"])
            for pod in new
            for condition in pod["status"]["conditions"]
            if condition["type"] == kind
        ]
        out[kind] = max(times) - first
    return out


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


ARMS: dict[str, Callable[[Kubectl, Path, list[int]], dict[str, Any]]] = {
    OURS: _ours, IN_VOLUME: _in_volume, SAME_TEMPLATE: _same_template, BARE: _bare,
}  # fmt: skip
