"""Answers one failure, a rank of three that gets SIGKILL, by each rung: in place, by a spare, by another pod.

The same script in the same image and on the same volume runs under JobSet, whose rungs are the restart of all
containers and the recreation of all pods. Each trial creates its own jobs, one after the other.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kind import jobset
from benchmarks.kind.group import MOUNT, SCRIPTS, Group, environ, image, namespace
from tests.chaos.on_kind import HERE as CHAOS
from tests.chaos.on_kind import Cluster
from tests.e2e.kit import Job, Kubectl, Object, wait_until

RANKS = 3
STEP_SECONDS = 0.02
SCRIPT = f"{MOUNT}/ladder_script.py"
# Without a request the kernel would give any other process of the machine 500 times as much.
RESOURCES: Object = {"requests": {"cpu": "250m"}}
SAVES = "torch_script.py"
"""A script that saves at SIGTERM by the training library: that of the chaos tests."""
VARIABLES = {"CHAOS_STEP_SECONDS": STEP_SECONDS, "OMP_NUM_THREADS": 1, "LADDER_STEP_SECONDS": STEP_SECONDS}
IN_PLACE, ELSEWHERE = "dtj: in place", "dtj: another pod, on another node"
DELETED, DELETED_SPARE = "dtj: pod deleted", "dtj: pod deleted, a spare"
ALL = "dtj: all pods deleted"
SICK = "dtj: a node reports an Xid error"
JOBSET_IN_PLACE, JOBSET_RECREATE = "JobSet: InPlaceRestart", "JobSet: Recreate"

Figures = dict[str, Any]


def _job(kubectl: Kubectl, shared: Path, script: str = SCRIPT, **spec: Any) -> tuple[Job, Cluster, Group]:
    """Creates a job, and returns once all its pods have imported torch."""
    container: Object = {
        "name": "trainer", "env": environ(**VARIABLES), "resources": RESOURCES,
        "volumeMounts": [{"name": "script", "mountPath": MOUNT, "readOnly": True}],
    }  # fmt: skip
    pod = {"containers": [container], "volumes": [{"name": "script", "configMap": {"name": "bench"}}]}
    restart = {"maxRestarts": 1000, "maxRestartsWithoutProgress": 1000} | spec.pop("restart", {})
    base: Object = {
        "replicas": RANKS, "image": image(), "backend": "gloo", "entrypoint": {"script": script},
        "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 50, "keep": 3},
        "restart": restart, "template": {"spec": pod},
    }  # fmt: skip
    job = Job(kubectl, "ladder", shared, base | spec).create()
    group = Group(kubectl, job.folder, "training.dtj.dev/job-name=ladder", RANKS, lambda: job.get().get("status"))
    cluster = Cluster(kubectl, job, elastic=False, records=group.records)
    group.wait_whole()
    cluster.wait_running()
    return job, cluster, group


def _end(job: Job, group: Group) -> None:
    job.delete()
    wait_until("the job's pods to end", lambda: not group.pods(), timeout=120)


def _disturbed(job: Job, group: Group, fault: Callable[[], float]) -> Figures:
    """Disturbs a job, and returns the figures of its recovery."""
    pods = {pod["metadata"]["uid"] for pod in group.pods().values()}
    before, first = group.look().newest, job.get()["status"]
    found = group.recovered(fault(), before)
    group.wait_ready(RANKS + job.spec.get("spares", 0))
    status, begun = job.get()["status"], {one.attempt for one in group.look().begins if one.attempt > before}
    kept = {pod["metadata"]["uid"] for pod in group.pods().values()} & pods
    return found | {
        "kept": len(kept),
        "attempts": max(len(begun), status["attempt"] - first["attempt"]),
        "recoveries": [one for one in status.get("recoveries", []) if one["attempt"] > first["attempt"]],
    }


def _delete(kubectl: Kubectl, group: Group, *pods: str) -> Callable[[], float]:
    def fault() -> float:
        since = time.monotonic()
        kubectl("delete", "pod", *pods, "--wait=false", "--grace-period=1")
        return since

    return fault


def plain(kubectl: Kubectl, shared: Path, trial: int) -> dict[str, Figures]:
    """Measures the rungs of a job without spares, one after the other."""
    job, cluster, group = _job(kubectl, shared)
    found = {IN_PLACE: _disturbed(job, group, lambda: group.kill(trial % RANKS))}
    cluster.wait_running()
    found[DELETED] = _disturbed(job, group, _delete(kubectl, group, f"ladder-{trial % RANKS}"))
    cluster.wait_running()
    found[ALL] = _disturbed(job, group, _delete(kubectl, group, *sorted(group.pods())))
    _end(job, group)
    return found


RULE: Object = {"rules": [{"signals": ["SIGKILL"], "action": "RestartElsewhere"}]}


def spare(kubectl: Kubectl, shared: Path, trial: int) -> dict[str, Figures]:
    """Measures a job with one spare."""
    job, _, group = _job(kubectl, shared, spares=1)
    found = {DELETED_SPARE: _disturbed(job, group, _delete(kubectl, group, f"ladder-{trial % RANKS}"))}
    _end(job, group)
    return found


def elsewhere(kubectl: Kubectl, shared: Path, trial: int) -> dict[str, Figures]:
    """Measures a rule that replaces the pod of the rank on another node."""
    job, _, group = _job(kubectl, shared, restart=RULE)
    pod, _ = _loneliest(group)
    found = {ELSEWHERE: _disturbed(job, group, lambda: group.kill(int(pod.rpartition("-")[2])))}
    _end(job, group)
    return found


def sick(kubectl: Kubectl, shared: Path, trial: int) -> dict[str, Figures]:
    """Measures a job that leaves a node because of the sign of a detector, before a rank fails."""
    job, _, group = _job(kubectl, shared, f"{MOUNT}/{SAVES}")
    _, node = _loneliest(group)

    def fault() -> float:
        since = time.monotonic()
        _report(node, {"type": SIGN, "status": "True", "reason": "Xid79", "message": "GPU has fallen off the bus"})
        return since

    try:
        found = {SICK: _disturbed(job, group, fault)}
        found[SICK]["left"] = node not in {pod["spec"]["nodeName"] for pod in group.pods().values()}
    finally:
        _report(node, {"type": SIGN, "$patch": "delete"})
    _end(job, group)
    return found


SIGN = "XidCriticalError"


def _report(node: str, condition: Object) -> None:
    patch = json.dumps({"status": {"conditions": [condition]}})
    Kubectl()("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)


def _loneliest(group: Group) -> tuple[str, str]:
    """Returns a pod on the node with the fewest pods, and that node: all of the job's pods leave such a node."""
    nodes = {name: pod["spec"]["nodeName"] for name, pod in group.pods().items()}
    counts = Counter(nodes.values())
    pod = min(sorted(nodes), key=lambda name: counts[nodes[name]])
    return pod, nodes[pod]


def peer(strategy: str, arm: str) -> Callable[[Kubectl, Path, int], dict[str, Figures]]:
    """Returns the measurement of a JobSet with a restart strategy."""

    def measured(kubectl: Kubectl, shared: Path, trial: int) -> dict[str, Figures]:
        jobset.put_agent(shared)
        kubectl.apply(*jobset.objects(kubectl.namespace, strategy, RANKS, SCRIPT, image(), RESOURCES, **VARIABLES))
        status = lambda: (kubectl.get("jobset", jobset.NAME) or {}).get("status")  # noqa: E731
        group = Group(kubectl, shared / jobset.NAME, f"jobset.sigs.k8s.io/jobset-name={jobset.NAME}", RANKS, status)
        group.wait_whole()
        group.wait_ready()
        pods, before = {pod["metadata"]["uid"] for pod in group.pods().values()}, group.look().newest
        found = group.recovered(group.kill(trial % RANKS), before)
        found["kept"] = len({pod["metadata"]["uid"] for pod in group.pods().values()} & pods)
        found["attempts"] = len({one.attempt for one in group.look().begins if one.attempt > before})
        kubectl("delete", "jobset", jobset.NAME, "--timeout=60s")
        wait_until("the JobSet's pods to end", lambda: not group.pods(), timeout=120)
        return {arm: found}

    return measured


SETS: tuple[tuple[tuple[str, ...], Callable[[Kubectl, Path, int], dict[str, Figures]]], ...] = (
    ((IN_PLACE, DELETED, ALL), plain),
    ((DELETED_SPARE,), spare),
    ((ELSEWHERE,), elsewhere),
    ((SICK,), sick),
    ((JOBSET_IN_PLACE,), peer(jobset.IN_PLACE, JOBSET_IN_PLACE)),
    ((JOBSET_RECREATE,), peer(jobset.RECREATE, JOBSET_RECREATE)),
)
"""The arms that one job measures, and how."""


def measure(arms: tuple[str, ...], trial: int) -> dict[str, Figures]:
    """Returns the figures of one trial of the arms of one job."""
    (run,) = (run for names, run in SETS if names == arms)
    with namespace("ladder", SCRIPTS / "ladder_script.py", CHAOS / SAVES) as (kubectl, shared):
        return run(kubectl, shared, trial)
