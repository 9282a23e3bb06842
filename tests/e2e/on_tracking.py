"""The chart's MLflow and TensorBoard on kind, with jobs that write to them; and W&B's client in restricted pods.

`make test-tracking` runs this file, and `make test-long` with it, on a network that enforces policies. The image of
MLflow is built from its package, and TensorBoard runs in the trainer image.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.images.deploy import NAMESPACE, RELEASE
from hack.images.recipes import ROOT
from tests.e2e.conftest import drop_namespace, make_namespace
from tests.e2e.kit import Job, Kubectl, Object, is_true, wait_until
from tests.e2e.test_helm import helm_ok, revision, rollback
from tests.e2e.test_network import start
from tests.e2e.test_recovery import KILL_WORKER
from tests.frameworks.wandb_server import KEY
from tests.lib.ports import free_port

MLFLOW, TENSORBOARD = "dtj-operator-mlflow", "dtj-operator-tensorboard"
ADDRESS = f"http://{MLFLOW}.{NAMESPACE}:5000"
STEPS, KILL_AT = 300, 100
LIMIT = 600
WANDB = "wandb==0.31.0"
POLICIES_REQUIRED = "DTJ_POLICIES_REQUIRED"
"""Set by `make test-tracking`: the network enforces policies."""
pytestmark = pytest.mark.timeout(3 * LIMIT)


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """Starts no idle job, which only test_idle_job.py needs."""


@pytest.fixture(scope="module")
def namespace(cluster: dict[str, str], shared_root: Path) -> Iterator[Kubectl]:
    kubectl = make_namespace(f"tracking-{uuid.uuid4().hex[:4]}", shared_root)
    for name, path in (("tracking", "examples/tracking/train.py"), ("train", "examples/train.yaml")):
        kubectl("create", "configmap", name, f"--from-file={ROOT / path}")
    kubectl("create", "secret", "generic", "tracking", f"--from-literal=MLFLOW_TRACKING_URI={ADDRESS}")
    kubectl("create", "secret", "generic", "wandb", f"--from-literal=WANDB_API_KEY={KEY}")
    yield kubectl
    drop_namespace(kubectl, shared_root)


@pytest.fixture(scope="module")
def servers(namespace: Kubectl, images: dict[str, str]) -> Iterator[dict[str, str]]:
    """Installs both servers into the release. Returns the commands of its notes that open them, by Service.

    Afterwards the release has its former values, and MLflow's claim is deleted.
    """
    done = subprocess.run(
        [sys.executable, "-m", "hack.images", "mlflow"], capture_output=True, text=True, timeout=3000, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    chosen = {
        "mlflow.enabled": "true",
        "mlflow.image": done.stdout.strip().partition("=")[2],
        "tensorboard.enabled": "true",
        "tensorboard.image": images["trainer"],
        "tensorboard.namespace": namespace.namespace,
        "tensorboard.existingClaim": "shared",
    }
    flags = [f"--set=tracking.{key}={value}" for key, value in chosen.items()]
    number = revision()
    operator = Kubectl(NAMESPACE)
    try:
        helm_ok("upgrade", RELEASE, str(ROOT / "charts/dtj-operator"), "--reuse-values", *flags)
        rolled_out(operator, MLFLOW)
        rolled_out(namespace, TENSORBOARD)
        notes = helm_ok("get", "notes", RELEASE)
        yield {command.split("/")[1].split()[0]: command for command in re.findall(r"kubectl .*port-forward.*", notes)}
    finally:
        rollback(number)
        operator("delete", "pvc", MLFLOW, "--wait=false", "--ignore-not-found")


def rolled_out(kubectl: Kubectl, deployment: str) -> None:
    # A node pulls the image of MLflow first.
    kubectl("rollout", "status", f"deployment/{deployment}", f"--timeout={LIMIT}s", timeout=LIMIT + 10)


@contextmanager
def opened(command: str) -> Iterator[str]:
    """Runs a command of the chart's notes, at a local port that is free. Returns the address."""
    local = free_port()
    parts = command.split()
    process = subprocess.Popen([*parts[:-1], f"{local}:{parts[-1]}"], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{local}"
    try:
        wait_until("the port is forwarded", lambda: get(address), retry=(OSError,))
        yield address
    finally:
        process.kill()
        process.wait()


def get(asked: str | urllib.request.Request) -> bytes:
    with urllib.request.urlopen(asked, timeout=30) as answer:
        body: bytes = answer.read()
    return body


class Runs:
    """The runs of a job in MLflow, by its REST API."""

    def __init__(self, address: str) -> None:
        self.api = f"{address}/api/2.0/mlflow"

    def of(self, tag: str, value: str, experiment: str) -> list[str]:
        """Returns the ids of the runs with this tag."""
        found = self.search("experiments", filter=f"name = '{experiment}'", max_results=1)
        ids = [each["experiment_id"] for each in found]
        runs = self.search("runs", filter=f"tags.`{tag}` = '{value}'", experiment_ids=ids) if ids else []
        return [run["info"]["run_id"] for run in runs]

    def search(self, kind: str, **query: object) -> list[Any]:
        request = urllib.request.Request(
            f"{self.api}/{kind}/search", json.dumps(query).encode(), {"Content-Type": "application/json"}
        )
        found: list[Any] = json.loads(get(request)).get(kind, [])
        return found

    def steps(self, run: str, metric: str = "loss") -> list[int]:
        found = get(f"{self.api}/metrics/get-history?run_id={run}&metric_key={metric}&max_results=5000")
        return [int(each["step"]) for each in json.loads(found).get("metrics", [])]


def example(namespace: Kubectl, image: str, name: str, shared_root: Path) -> Job:
    """Returns examples/tracking.yaml as a job of this name, with more steps."""
    spec: Object = yaml.safe_load((ROOT / "examples/tracking.yaml").read_text())["spec"]
    spec["entrypoint"]["args"] = [str(STEPS)]
    return Job(namespace, name, shared_root / namespace.namespace, spec | {"image": image})


def kill_rank_0(job: Job) -> None:
    job.kubectl("exec", f"{job.name}-0", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)


def assert_killed_once(status: Object) -> None:
    assert status["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}
    assert (status["failures"][-1]["rank"], status["failures"][-1]["signal"]) == (0, "SIGKILL")


def test_killed_rank_0_has_one_run_in_mlflow_which_outlives_the_server(
    namespace: Kubectl, servers: dict[str, str], images: dict[str, str], shared_root: Path
) -> None:
    job = example(namespace, images["trainer"], "tracking", shared_root).create()
    uid = job.get()["metadata"]["uid"]
    operator = Kubectl(NAMESPACE)

    def runs(mlflow: Runs) -> list[str]:
        assert not is_true(job.get(), "Failed"), job.get()["status"]
        return mlflow.of("dtj.uid", uid, "digits")

    with opened(servers[MLFLOW]) as address:
        mlflow = Runs(address)
        [run] = wait_until("the job's run", lambda: runs(mlflow), timeout=LIMIT)
        wait_until(f"step {KILL_AT}", lambda: max(mlflow.steps(run), default=0) >= KILL_AT, timeout=LIMIT)
        kill_rank_0(job)
        assert_killed_once(job.wait("Complete", LIMIT)["status"])
        assert runs(mlflow) == [run]
        before = mlflow.steps(run)
    assert set(before) == set(range(STEPS))
    operator("delete", "pod", "-l", f"app.kubernetes.io/name={MLFLOW}", "--wait=true", "--timeout=120s", timeout=130)
    rolled_out(operator, MLFLOW)
    with opened(servers[MLFLOW]) as address:
        mlflow = Runs(address)
        assert runs(mlflow) == [run]
        assert mlflow.steps(run) == before


def test_trainer_writes_scalars_to_both_servers(
    namespace: Kubectl, servers: dict[str, str], images: dict[str, str], shared_root: Path
) -> None:
    spec: Object = yaml.safe_load((ROOT / "examples/dtj-train.yaml").read_text())["spec"]
    args = ["--config", "examples/train.yaml", "--epochs", "2", "--telemetry.mlflow", ADDRESS]
    spec["entrypoint"]["args"] = [*args, "--telemetry.tensorboard", "$(DTJ_CHECKPOINT_DIR)/tb"]
    spec["image"] = images["trainer"]
    job = Job(namespace, "trainer", shared_root / namespace.namespace, spec).create()
    job.wait("Complete", LIMIT)
    logged = job.losses()
    assert logged
    with opened(servers[MLFLOW]) as address:
        [run] = Runs(address).of("dtj.job", f"{namespace.namespace}/trainer", "default")
        assert set(Runs(address).steps(run)) == set(logged)
    with opened(servers[TENSORBOARD]) as address:
        name = f"{namespace.namespace}/trainer/tb"
        # TensorBoard looks for files each 5 s.
        wait_until("the job in TensorBoard", lambda: name in json.loads(get(f"{address}/data/runs")), timeout=120)
        asked = urllib.parse.urlencode({"run": name, "tag": "loss"})
        scalars = json.loads(get(f"{address}/data/plugin/scalars/scalars?{asked}"))
    assert {step: value for _, step, value in scalars} == pytest.approx(logged, rel=1e-6)


def test_pods_of_jobs_alone_reach_mlflow_and_nobody_reaches_tensorboard(
    namespace: Kubectl, servers: dict[str, str], images: dict[str, str]
) -> None:
    """That the jobs' pods do is what the tests above need."""
    if not os.environ.get(POLICIES_REQUIRED):
        pytest.skip("this cluster may enforce no NetworkPolicy: make test-tracking")
    stranger = start(namespace, "stranger", images["trainer"], {})
    member = start(namespace, "member", images["trainer"], {"training.dtj.dev/job-name": "tracking"})
    places = {
        name: f"{(kubectl.get('service', name) or {})['spec']['clusterIP']}:{port}"
        for kubectl, name, port in ((Kubectl(NAMESPACE), MLFLOW, 5000), (namespace, TENSORBOARD, 6006))
    }
    asked = list(places.values())
    expected = {places[MLFLOW]: True, places[TENSORBOARD]: False}
    wait_until("a job's pod reaches MLflow alone", lambda: member.reached(asked) == expected, timeout=60)
    assert set(stranger.reached(asked).values()) == {False}


def test_both_servers_run_in_restricted_namespaces(namespace: Kubectl, servers: dict[str, str]) -> None:
    for kubectl, name in ((Kubectl(NAMESPACE), MLFLOW), (namespace, TENSORBOARD)):
        found = Kubectl().get("namespace", kubectl.namespace) or {}
        assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
        [pod] = kubectl.list("pods", f"app.kubernetes.io/name={name}")
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_offline_attempts_of_wandb_are_one_run_and_the_key_stays_in_its_secret(
    namespace: Kubectl, images: dict[str, str], shared_root: Path
) -> None:
    """The root of the pod is read-only. tests/frameworks/on_wandb.py sends what such attempts write."""
    packages = shared_root / namespace.namespace / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    python = ["--only-binary=:all:", "--python-version=3.11", "--target", str(packages)]
    subprocess.run([*pip, *python, WANDB], check=True, timeout=LIMIT)
    job = example(namespace, images["trainer"], "offline", shared_root)
    del job.spec["envFrom"]
    secret = {"secretKeyRef": {"name": "wandb", "key": "WANDB_API_KEY"}}
    job.spec["env"] += [
        {"name": "WANDB_API_KEY", "valueFrom": secret},
        {"name": "WANDB_MODE", "value": "offline"},
        {"name": "PYTHONPATH", "value": "/checkpoints/packages"},
    ]
    job.spec["entrypoint"]["args"] = ["2000"]
    job.create()
    wait_until("a checkpoint", lambda: any(job.folder.glob("step-*")), timeout=LIMIT)
    kill_rank_0(job)
    status = job.wait("Complete", LIMIT)["status"]
    assert_killed_once(status)
    assert KEY not in json.dumps(job.get())
    files = [path for path in job.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files), "the pods' logs"
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    attempts = [path.name for path in (job.folder / "wandb").glob("offline-run-*/*.wandb")]
    assert attempts == [f"run-{job.get()['metadata']['uid']}.wandb"] * 2
