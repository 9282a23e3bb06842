"""Fills a store with running jobs as an API server serves them, and prints what they cost.

    python -m hack.cache_cost [JOBS] [PODS]

Needs no API server. The StatefulSet and the pods have what a real cluster adds: managed fields,
defaults, a token volume, tolerations.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from dtj_contract import names
from dtj_core.plan import children
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Settings
from dtj_operator.kube.cache.store import Store
from dtj_operator.kube.resources import JOB, POD, SERVICE, STATEFUL_SET

TIME = "2026-09-21T14:13:20Z"
FIELDS: Object = {f"f:field-{number}": {} for number in range(60)}
MANAGED = [{"manager": f"m{number}", "operation": "Apply", "fieldsV1": FIELDS} for number in (1, 2)]
SETTINGS = Settings(agent_image="registry.example.com/dtj-operator:1.0.0", master_key=b"k" * 32)


def job_of(number: int) -> Object:
    """Returns a running job as stored, with the status that it has after some progress."""
    condition = {"status": "True", "lastTransitionTime": TIME, "reason": "WorkersRunning", "message": "2 ranks run"}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": _metadata(f"job-{number:05}", number),
        "spec": {
            "replicas": 2,
            "image": "registry.example.com/trainer:1.0.0",
            "backend": "gloo",
            "entrypoint": {"module": "train", "args": ["--epochs", "30", "--lr", "0.1"]},
            "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 50, "keep": 3},
            "restart": {"maxRestarts": 10, "windowSeconds": 3600},
        },
        "status": {
            "phase": "Running",
            "ready": "2/2",
            "attempt": 1,
            "startTime": TIME,
            "conditions": [condition | {"type": kind, "observedGeneration": 1} for kind in ("Running", "Restarting")],
            "progress": {"step": 1000, "totalSteps": 9000, "time": TIME, "loss": 0.31, "stepsPerSecond": 3.1},
            "checkpoint": {"step": 950, "time": TIME, "path": "/checkpoints/step-950", "valid": True},
            "restarts": {"total": 0, "inPlace": 0, "pod": 0, "counted": 0},
        },
    }


def pod_of(job: Object, template: Object, ordinal: int, number: int) -> Object:
    """Returns a running pod of the job as an API server serves it."""
    name = f"{job['metadata']['name']}-{ordinal}"
    labels = template["metadata"]["labels"] | {names.LABEL_POD_INDEX: str(ordinal), "controller-revision-hash": name}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": job["metadata"]["name"], "uid": f"set-{number}"}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": TIME} for kind in kinds]
    containers = [
        {
            "name": each["name"],
            "ready": True,
            "restartCount": 0,
            "started": True,
            "image": each["image"],
            "imageID": each["image"] + "@sha256:" + "0" * 64,
            "containerID": "containerd://" + "1" * 64,
            "state": {"running": {"startedAt": TIME}},
        }
        for each in template["spec"]["containers"]
    ]
    spec = template["spec"] | {
        "nodeName": f"node-{number % 100}",
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("not-ready", "lost")],
    }
    return {
        "metadata": _metadata(name, number) | {"labels": labels, "ownerReferences": [owner | {"controller": True}]},
        "spec": spec,
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "hostIP": "192.168.0.1",
            "startTime": TIME,
            "conditions": conditions,
            "containerStatuses": containers,
            "initContainerStatuses": containers,
        },
    }


def fill(store: Store, jobs: int, pods: int) -> int:
    """Puts the jobs into the store, each object parsed from JSON of its own. Returns the bytes of JSON."""
    size = 0
    for number in range(jobs):
        job = job_of(number)
        _, service, stateful_set = children.all_children(Job.from_object(job), SETTINGS)
        template = stateful_set["spec"]["template"]
        objects = [(JOB, job), (SERVICE, _stored(service, number)), (STATEFUL_SET, _stored(stateful_set, number))]
        objects += [(POD, pod_of(job, template, ordinal, number)) for ordinal in range(pods)]
        for resource, obj in objects:
            text = json.dumps(obj)
            size += len(text)
            table = store.tables[resource]
            table.event(None, "ADDED", table.kind.trim(json.loads(text)))
    return size


def _stored(child: Object, number: int) -> Object:
    return child | {"metadata": _metadata(child["metadata"]["name"], number) | child["metadata"]}


def _metadata(name: str, number: int) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "team",
        "uid": f"00000000-0000-0000-0000-{number:012}",
        "resourceVersion": str(number + 1),
        "generation": 1,
        "creationTimestamp": TIME,
        "managedFields": MANAGED,
    }


def resident_kib() -> int:
    """Returns the resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def main() -> None:
    jobs, pods = (int(text) for text in [*sys.argv[1:], *("1000", "2")[len(sys.argv) - 1 :]])
    fill(Store(), 10, pods)
    gc.collect()
    before, began = resident_kib(), time.perf_counter()
    store = Store()
    size = fill(store, jobs, pods)
    took = time.perf_counter() - began
    gc.collect()
    grown = resident_kib() - before
    print(f"{jobs} jobs of {pods} pods: {size / jobs / 1024:.1f} KiB of JSON, {grown / jobs:.1f} KiB of memory a job")
    print(f"made, parsed and stored in {took / jobs * 1000:.2f} ms a job")


if __name__ == "__main__":
    main()
