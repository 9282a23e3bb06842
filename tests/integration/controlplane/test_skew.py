"""Operator and CRD are upgraded and rolled back under a running job.

The job keeps its pods, and finishes with its own outcome.
"""

from __future__ import annotations

import copy
import json
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
    Agents,
    Objects,
    Operator,
    change,
    outcome,
    running,
    wait_until,
)

Start = Callable[..., Operator]
JOBS = names.PLURAL
ROOT = Path(__file__).parents[3]
OTHER = str(Path(__file__).parent / "other_version.py")
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
NEWER = {"backends": ["auto", "nccl", "gloo", "mpi"], "replicas": 3000, "maxRestarts": 20}
OLDER = {"backends": ["auto", "gloo"], "replicas": 1, "maxRestarts": 3}
Schema = dict[str, Any]


@pytest.fixture
def install_crd(plane: ControlPlane) -> Iterator[Callable[[Callable[[Schema], None]], None]]:
    """Installs our CRD with a changed schema.

    The CRD of the repository is restored after the test.
    """
    path = ROOT / "crds" / f"{names.GROUP}_{names.PLURAL}.yaml"
    ours = yaml.safe_load(path.read_text())

    def install(edit: Callable[[Schema], None]) -> None:
        wanted = copy.deepcopy(ours)
        schema = wanted["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        edit(schema)
        change(plane, CRD, lambda stored: stored.update(spec=wanted["spec"]))
        # The API server serves a stored CRD only after a while.
        wait_until("the schema is served", lambda: served(plane) == backends(schema), timeout=60)

    yield install
    install(lambda schema: None)


def backends(schema: Schema) -> set[str]:
    return set(schema["properties"]["spec"]["properties"]["backend"]["enum"])


def served(plane: ControlPlane) -> set[str]:
    """Returns the backends that the API server accepts now."""
    taken = set()
    for backend in ("auto", "nccl", "gloo", "mpi", "ucc"):
        spec = {"image": "i", "entrypoint": {"module": "m"}, "backend": backend}
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "probe"}, "spec": spec}
        path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}?dryRun=All"
        try:
            plane.request("POST", path, body)
        except ProvisionError as error:
            if ": 422 " not in str(error):
                raise
        else:
            taken.add(backend)
    return taken


def newer(schema: Schema) -> None:
    spec = schema["properties"]["spec"]["properties"]
    spec["backend"]["enum"].append("mpi")
    spec["restart"]["properties"]["maxRestarts"]["default"] = 20
    spec["restart"]["properties"]["backoffSeconds"] = {"type": "integer", "default": 5}
    spec["communication"] = {
        "type": "object",
        "default": {"algorithm": "ring"},
        "properties": {"algorithm": {"type": "string"}},
    }


def older(schema: Schema) -> None:
    spec, status = (schema["properties"][name]["properties"] for name in ("spec", "status"))
    spec["backend"]["enum"].remove("nccl")
    for fields, name in (
        (status, "lastUpdateTime"),
        (status["progress"]["properties"], "percent"),
        (status["conditions"]["items"]["properties"], "observedGeneration"),
    ):
        del fields[name]


class Life:
    """The facts that must not change while a job runs."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.before = self.now()

    def now(self) -> Any:
        found = self.objects.get("statefulsets", "j")
        pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.objects.list("pods")}
        return found["metadata"]["uid"], found["metadata"]["generation"], found["metadata"].get("annotations"), pods

    def goes_on(self) -> None:
        assert self.now() == self.before
        job = self.objects.get(JOBS, "j")
        assert self.objects.condition("j", "Running"), job["status"]


def looked(operator: Operator, agents: Agents) -> None:
    """Waits until the operator has reconciled the job several times."""
    asked = agents.asked
    operator.ready()
    wait_until("the operator has reconciled", lambda: agents.asked >= asked + 3, timeout=60)


@pytest.mark.timeout(400)
def test_rolled_back_operator_leaves_a_job_of_a_newer_crd_alone(
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    install_crd: Callable[..., None],
) -> None:
    install_crd(newer)
    first = start_operator(program=(OTHER, json.dumps(NEWER))).ready()
    job = submit(backend="mpi", restart={"maxRestarts": 1000, "backoffSeconds": 7})
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)
    life = Life(objects)
    first.kill()

    rolled_back = start_operator()
    looked(rolled_back, agents)
    stalled = wait_until("the unreadable field is named", lambda: objects.condition("j", "Stalled"), timeout=60)
    assert "spec.backend" in stalled["message"]
    life.goes_on()
    rolled_back.kill()

    upgraded = start_operator(program=(OTHER, json.dumps(NEWER)))
    looked(upgraded, agents)
    wait_until("it can be read again", lambda: not objects.condition("j", "Stalled"), timeout=60)
    life.goes_on()
    upgraded.kill()

    start_operator().ready()
    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until("the job is complete", lambda: objects.condition("j", "Complete"), timeout=60)
    wait_until("its pods are gone", lambda: not objects.list("pods"), timeout=60)


@pytest.mark.parametrize(
    ("first", "then"),
    [(None, NEWER), (NEWER, None), (None, OLDER), (OLDER, None)],
    ids=["to newer", "from newer", "to older", "from older"],
)
def test_defaults_and_bounds_of_another_version_restart_no_job(
    first: Any,
    then: Any,
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    program = {"program": (OTHER, json.dumps(first))} if first else {}
    before = start_operator(**program).ready()
    job = submit(replicas=1)
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)
    life = Life(objects)
    before.kill()
    program = {"program": (OTHER, json.dumps(then))} if then else {}
    looked(start_operator(**program), agents)
    life.goes_on()


@pytest.mark.timeout(400)
def test_crd_upgrade_and_rollback_under_a_job_restart_nothing(
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    install_crd: Callable[..., None],
) -> None:
    operator = start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)
    life = Life(objects)
    for edit in (newer, lambda schema: None):
        install_crd(edit)
        operator.kill()
        operator = start_operator()
        looked(operator, agents)
        life.goes_on()


@pytest.mark.timeout(400)
def test_job_under_an_older_crd_runs_suspends_and_finishes(
    start_operator: Start,
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    install_crd: Callable[..., None],
) -> None:
    install_crd(older)
    operator = start_operator()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running(step=9)
    wait_until("the job runs", lambda: objects.condition("j", "Running"), timeout=60)
    looked(operator, agents)
    status = objects.get(JOBS, "j")["status"]
    assert status["progress"]["step"] == 9
    assert "percent" not in status["progress"]
    assert "the CRD is older than the operator" in operator.log.read_text()

    objects.change(JOBS, "j", lambda job: job["spec"].update(suspend=True))
    wait_until("the job is suspended", lambda: objects.condition("j", "Suspended"), timeout=60)
    objects.change(JOBS, "j", lambda job: job["spec"].update(suspend=False))
    wait_until("the job runs again", lambda: objects.condition("j", "Running"), timeout=60)
    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until("the job is complete", lambda: objects.condition("j", "Complete"), timeout=60)
