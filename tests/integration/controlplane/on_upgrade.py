"""The release before, this version, and back again, with jobs in several phases: nothing restarts, nothing is lost.

The release before is the operator and the CRD of an older commit of this repository.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import (
    SERVICE_ACCOUNT,
    Agents,
    Objects,
    Operator,
    bind,
    change,
    outcome,
    running,
    wait_until,
)

ROOT = Path(__file__).parents[3]
BEFORE = "6af1f893"
"""The commit that counts as the release before: the last one without election, listeners and shorthands."""
JOBS = names.PLURAL
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
FAILURE = {"attempt": 1, "rank": 1, "ordinal": 1, "pod": "restarts-1", "reason": "WorkerFailed", "message": "exit 7"}
NO_QUANTITY = {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "big"}}}]}}
ROUNDS = 3
"""Reconciles of each job, after which an operator has done what it wants to do."""
Snapshot = dict[str, Any]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Returns the tree of the release before."""
    parts = ("contract", "core", "operator", "crds")
    done = subprocess.run(["git", "archive", BEFORE, *parts], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"this clone does not have commit {BEFORE}")
    folder = tmp_path / "before"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def install(plane: ControlPlane) -> Iterator[Callable[[Path], None]]:
    """Installs the CRD of a tree. The one of this tree is there again after the test."""

    def put(tree: Path) -> None:
        path = tree / "crds" / "training.dtj.dev_distributedtrainingjobs.yaml"
        spec = yaml.safe_load(path.read_text())["spec"]
        change(plane, CRD, lambda stored: stored.update(spec=spec))
        fields = len(spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])

        def served() -> bool:
            found = plane.request("GET", f"/openapi/v3/apis/{names.API_VERSION}")["components"]["schemas"]
            [schema] = [value for key, value in found.items() if key.endswith(f".{names.KIND}")]
            if len(schema["properties"]["spec"]["properties"]) != fields:
                return False
            try:  # for some seconds, the API server answers with 429: "storage is (re)initializing"
                plane.request("GET", f"/apis/{names.API_VERSION}/{JOBS}")
            except ProvisionError:
                return False
            return True

        wait_until("the CRD is served", served)

    yield put
    put(ROOT)


def snapshot(objects: Objects) -> Snapshot:
    """Returns what no upgrade may change."""
    sets = {
        each["metadata"]["name"]: (each["metadata"]["uid"], each["spec"]["template"], each["spec"]["replicas"])
        for each in objects.list("statefulsets")
    }
    pods = sorted((pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in objects.list("pods"))
    return {"sets": sets, "pods": pods}


def statuses(objects: Objects) -> dict[str, Any]:
    return {job["metadata"]["name"]: job.get("status", {}) for job in objects.list(JOBS)}


def reconciles(operator: Operator) -> float:
    found = re.findall(r"^dtj_reconcile_total\{.*\} ([0-9.]+)$", operator.get("/metrics")[1], re.MULTILINE)
    return sum(map(float, found))


def check(objects: Objects, kept: Snapshot, known: dict[str, Any]) -> None:
    """Checks that all is as it was, and that no status has lost a field."""
    assert snapshot(objects) == kept
    now = statuses(objects)
    for name, status in known.items():
        assert status.keys() - now[name].keys() <= {"lastUpdateTime"}, f"{name} has lost fields of its status"
        assert (now[name]["phase"], now[name]["reason"]) == (status["phase"], status["reason"]), name
        if status["phase"] in ("Complete", "Failed"):
            assert now[name] == status, f"{name} has ended"


@pytest.mark.timeout(600)
def test_upgrade_and_rollback_restart_no_job_and_lose_no_status(
    plane: ControlPlane,
    namespace: str,
    before: Path,
    install: Callable[[Path], None],
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    # The rights of each version are tested elsewhere; here both have the same account.
    bind(plane, namespace, "everything", EVERYTHING, (namespace, SERVICE_ACCOUNT))
    old = (str(Path(__file__).parent / "previous.py"), str(before))
    install(before)
    agents.are_older = True  # pods keep the agent that they were started with
    operator = start_operator("--resync-seconds", "2", program=old).ready()
    phases = {"runs": "Running", "restarts": "Restarting", "waits": "Pending", "sleeps": "Suspended"}
    phases |= {"done": "Complete", "broken": "Failed"}
    for name in phases:
        broken = {"template": NO_QUANTITY} if name == "broken" else {}
        more = {"checkpoint": {"volume": {"claimName": "c"}}} if name == "runs" else {}
        job = submit(name, suspend=name == "sleeps", **broken, **more)
        if name in ("runs", "restarts"):
            agents.statuses[job["metadata"]["uid"]] = running(step=7)
        if name == "waits":
            agents.statuses[job["metadata"]["uid"]] = running(attempt=0, phase="Rendezvous", startTime=None)
        if name == "done":
            kubelet.container_states |= {
                f"done-{n}": outcome(job, "Succeeded", "AllWorkersSucceeded") for n in range(2)
            }
    wait_until("it runs", lambda: objects.condition("restarts", "Running"))
    uid = objects.get(JOBS, "restarts")["metadata"]["uid"]
    agents.statuses[uid] = running(phase="Rendezvous", phaseReason="WorkerFailed", failures=[FAILURE])
    found = lambda: {name: status.get("phase") for name, status in statuses(objects).items()}  # noqa: E731
    wait_until("every phase is there", lambda: found() == phases, detail=lambda: found())
    wait_until("ended jobs have no pods", lambda: len(objects.list("pods")) == 6)
    wait_until("the agents are heard", lambda: statuses(objects)["waits"].get("reason") == "Rendezvous")
    kept, known = snapshot(objects), statuses(objects)
    for tree, program in ((ROOT, ("-m", "dtj_operator.app")), (before, old)):
        operator.terminate()
        install(tree)
        check(objects, kept, known)
        operator = start_operator("--resync-seconds", "2", program=program).ready()
        wait_until("it has looked at all jobs", lambda: reconciles(operator) >= ROUNDS * len(phases))  # noqa: B023
        check(objects, kept, known)
        known = statuses(objects)
