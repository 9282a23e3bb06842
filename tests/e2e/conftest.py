"""The cluster that `make cluster-up deploy` left running.

Each test has a namespace that enforces PSS restricted.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Job, Kubectl, Object, environment, remove, wait_until

NODE_SHARED = "/var/lib/dtj-shared"

# The main job of this suite: 3 ranks, 239 steps. Every undisturbed run has the same losses.
DIGITS_ARGS = ["--epochs", "4", "--batch-size", "24", "--seed", "7", "--step-time-ms", "40", "--log-every", "1"]


def slowed(milliseconds: int) -> list[str]:
    """Returns the arguments of the same training with longer steps."""
    return [str(milliseconds) if last == "--step-time-ms" else arg for last, arg in pairwise(["", *DIGITS_ARGS])]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/" in str(item.path):
            item.add_marker(pytest.mark.e2e)
            # A mark of the item's own would win over that of its module.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def cluster() -> dict[str, str]:
    env = environment()
    os.environ.update({k: v for k, v in env.items() if k in ("KUBECONFIG", "PATH")})
    Kubectl("dtj-system")(
        "rollout", "status", "deployment", "-l", "app.kubernetes.io/name=dtj-operator", "--timeout=60s"
    )
    return env


@pytest.fixture(scope="session")
def shared_root(cluster: dict[str, str]) -> Path:
    return Path(cluster["DTJ_SHARED_DIR"])


@pytest.fixture(scope="session")
def images(cluster: dict[str, str]) -> dict[str, str]:
    """Returns the names by which the nodes pull the images that `make images` pushed."""
    import subprocess
    import sys

    out = subprocess.run(
        [sys.executable, "-m", "hack.images", "names"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return dict(line.split("=", 1) for line in out.split())


def make_namespace(name: str, shared_root: Path) -> Kubectl:
    """Creates a namespace under PSS restricted.

    Its ReadWriteMany claim `shared` is on the folder that both workers mount.
    """
    Kubectl().apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted", "dtj-e2e": "true"},
            },
        }
    )
    kubectl = Kubectl(name)
    folder = shared_root / name
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": f"{NODE_SHARED}/{name}"},
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": name, "name": "shared"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared"},
            "spec": claim | {"volumeName": name},
        },
    )
    return kubectl


def drop_namespace(kubectl: Kubectl, shared_root: Path) -> None:
    Kubectl()("delete", "namespace", kubectl.namespace, "--wait=false", "--ignore-not-found")
    Kubectl()("delete", "persistentvolume", kubectl.namespace, "--wait=false", "--ignore-not-found")
    remove(shared_root / kubectl.namespace)


@pytest.fixture
def kubectl(request: pytest.FixtureRequest, cluster: dict[str, str], shared_root: Path) -> Iterator[Kubectl]:
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:30].strip("-")
    kubectl = make_namespace(f"{slug}-{uuid.uuid4().hex[:4]}", shared_root)
    yield kubectl
    drop_namespace(kubectl, shared_root)


@pytest.fixture
def make_job(kubectl: Kubectl, shared_root: Path, images: dict[str, str]) -> Callable[..., Job]:
    return job_factory(kubectl, shared_root, images)


def job_factory(kubectl: Kubectl, shared_root: Path, images: dict[str, str]) -> Callable[..., Job]:
    def make(name: str = "digits", **spec: Any) -> Job:
        base: Object = {
            "replicas": 3,
            "image": images["trainer"],
            "backend": "gloo",
            "entrypoint": {"module": "dtj_trainer.examples.digits", "args": DIGITS_ARGS},
            "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 20, "keep": 3},
        }
        merged = {k: v for k, v in (base | spec).items() if v is not None}
        return Job(kubectl, name, shared_root / kubectl.namespace, merged)

    return make


@pytest.fixture(scope="session")
def undisturbed(cluster: dict[str, str], shared_root: Path, images: dict[str, str]) -> Iterator[Job]:
    """Runs the same job undisturbed to Complete.

    Every other run of the job must have its losses.
    """
    kubectl = make_namespace(f"undisturbed-{uuid.uuid4().hex[:4]}", shared_root)
    job = job_factory(kubectl, shared_root, images)().create()
    job.wait("Complete", 180)
    yield job
    drop_namespace(kubectl, shared_root)


@pytest.fixture(scope="session", autouse=True)
def quiet(cluster: dict[str, str], shared_root: Path, images: dict[str, str]) -> Iterator[tuple[Job, datetime]]:
    """Starts a job that runs and reports nothing, at the start of the session.

    Returns the job, and the time from which nothing is news any more: half a minute after its start
    the status shows that its steps are unknown.
    """
    kubectl = make_namespace(f"quiet-{uuid.uuid4().hex[:4]}", shared_root)
    template = {
        "spec": {"containers": [{"name": "trainer", "command": ["python3", "-c", "import time; time.sleep(3600)"]}]}
    }
    job = job_factory(kubectl, shared_root, images)("quiet", replicas=2, entrypoint=None, template=template).create()
    job.wait("Running", 120)
    yield job, datetime.now(UTC) + timedelta(minutes=1)
    drop_namespace(kubectl, shared_root)


@pytest.fixture
def operator(cluster: dict[str, str]) -> Kubectl:
    return Kubectl("dtj-system")


@pytest.fixture(autouse=True)
def no_traceback_in_the_operators_log(cluster: dict[str, str], request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that the operator handles every disturbance of a test as a known case."""
    yield
    kubectl = Kubectl("dtj-system")

    def log() -> str:
        text = kubectl.try_("logs", "-l", "app.kubernetes.io/name=dtj-operator", "--tail=-1").out
        return text if "serves all namespaces" in text else ""  # the first line: the log is complete

    assert "Traceback" not in wait_until("the operator's log", log, timeout=30)
