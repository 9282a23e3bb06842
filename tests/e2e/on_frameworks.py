"""Frameworks on kind, with their real packages, on 2 pods of 2 ranks: the same scripts as in tests/frameworks.

`make test-frameworks-kind` runs this file, and `make test-long` with it. Their image has nothing of this project.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import logbook
from dtj_contract import names
from hack.images.recipes import ROOT
from tests.e2e.conftest import drop_namespace, make_namespace
from tests.e2e.kit import Job, Kubectl, Object, is_true, wait_until
from tests.frameworks.on_frameworks import SDK_SCRIPT, STEPS, result

SCRIPT = ROOT / "tests/frameworks/scripts.py"
FRAMEWORKS = ("plain", "gpt", "fsdp2", "deepspeed", "transformers", "accelerate", "lightning")
PODS, LOCAL_RANKS = 2, 2
EVERY = {"accelerate": 4}
"""Steps between two saves, where they are not 6."""
KILL_AT = 13
"""Every framework has saved step 12."""
SHOWN_SECONDS = 10
LIMIT = 400
pytestmark = pytest.mark.timeout(4 * LIMIT)


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """Starts no idle job, which only test_idle_job.py needs."""


@pytest.fixture(scope="session")
def image(images: dict[str, str]) -> str:
    """Returns the image of the frameworks, which is built if it does not exist."""
    command = [sys.executable, "-m", "hack.images", "frameworks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition("=")[2]


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def namespace(cluster: dict[str, str], shared_root: Path) -> Iterator[Kubectl]:
    kubectl = make_namespace(f"frameworks-{uuid.uuid4().hex[:4]}", shared_root)
    scripts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}}
    kubectl.apply(scripts | {"data": {SCRIPT.name: SCRIPT.read_text(), "sdk.py": SDK_SCRIPT}})
    yield kubectl
    drop_namespace(kubectl, shared_root)


Start = Callable[..., Job]


@pytest.fixture(scope="module")
def start(namespace: Kubectl, shared_root: Path, image: str) -> Start:
    def create(framework: str, name: str, script: str = SCRIPT.name, warm: str = "Auto", **variables: object) -> Job:
        environ = {"TIMES": f"{names.DEFAULT_CHECKPOINT_DIR}/times/{name}", "HF_HUB_OFFLINE": 1, **variables}
        spec: Object = {
            "replicas": PODS,
            "processesPerPod": LOCAL_RANKS,
            "warmWorkers": warm,
            "image": image,
            "backend": "gloo",
            "entrypoint": {"script": f"scripts/{script}", "args": [framework]},
            "env": [{"name": key, "value": str(value)} for key, value in environ.items()],
            "checkpoint": {"volume": {"claimName": "shared"}},
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "workingDir": "/app",
                            "volumeMounts": [{"name": "scripts", "mountPath": "/app/scripts", "readOnly": True}],
                        }
                    ],
                    "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
                }
            },
        }
        return Job(namespace, name, shared_root / namespace.namespace, spec).create()

    return create


@pytest.fixture(scope="module")
def undisturbed(framework: str, start: Start) -> Job:
    """Runs the framework's script to Complete."""
    job = start(framework, framework)
    job.wait("Complete", LIMIT)
    return job


def entries(job: Job) -> list[logbook.Entry]:
    folder = job.shared / "times" / job.name
    return logbook.read(folder) if folder.exists() else []


def group_steps(job: Job) -> list[tuple[float, int]]:
    return logbook.group_steps(entries(job))


def until_step(job: Job, step: int) -> None:
    def reached() -> bool:
        found = job.get()
        assert not is_true(found, "Failed"), found["status"]
        return any(each >= step for _, each in group_steps(job))

    wait_until(f"{job.name} at step {step}", reached, timeout=LIMIT)


def test_undisturbed_training_completes_and_its_steps_are_known(undisturbed: Job, framework: str) -> None:
    status = undisturbed.get()["status"]
    assert result(undisturbed.folder)["step"] == STEPS
    assert {(entry.rank, entry.world) for entry in entries(undisturbed)} == {(rank, 4) for rank in range(4)}
    assert status["restarts"]["total"] == 0
    progress = status["progress"]
    # transformers reports at most every 5 s, and its last report has the end and no step.
    if framework == "transformers":
        assert (progress["totalSteps"], progress["percent"]) == (STEPS, 100)
    else:
        assert (progress["step"], progress["stepSource"]) == (STEPS, "Optimizer")


def test_undisturbed_training_without_warm_workers_has_the_same_result(
    undisturbed: Job, framework: str, start: Start
) -> None:
    job = start(framework, f"{framework}-plain", warm="Never")
    job.wait("Complete", LIMIT)
    assert result(job.folder) == pytest.approx(result(undisturbed.folder), rel=1e-6)


@pytest.mark.parametrize("warm", ["Auto", "Never"])
def test_killed_rank_comes_back_by_its_own_checkpoint(
    undisturbed: Job, framework: str, warm: str, start: Start
) -> None:
    job = start(framework, f"{framework}-killed-{warm.lower()}", warm=warm, PAUSE=1.5)
    until_step(job, KILL_AT)
    victim = logbook.newest(entries(job), PODS * LOCAL_RANKS - 1)
    pod = f"{job.name}-{PODS - 1}"
    job.kubectl("exec", pod, "-c", "trainer", "--", "sh", "-c", f"kill -9 {victim.pid}")
    status = job.wait("Complete", LIMIT)["status"]
    attempts = {attempt: [e for e in entries(job) if e.attempt == attempt] for attempt in (0, 1)}
    last = max(entry.steps[-1][1] for entry in attempts[0])
    assert last < STEPS, "the kill came after the end: repeat the test"
    resumed = {entry.steps[0][1] - 1 for entry in attempts[1]}
    every = EVERY.get(framework, 6)
    assert resumed in ({last // every * every}, {(last - 1) // every * every}), (last, resumed)
    assert result(job.folder) == pytest.approx(result(undisturbed.folder), rel=1e-6)
    assert status["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}
    failure = status["failures"][-1]
    assert (failure["rank"], failure["pod"], failure["signal"]) == (victim.rank, pod, "SIGKILL")
    seconds = min(entry.steps[0][0] for entry in attempts[1]) - max(entry.steps[-1][0] for entry in attempts[0])
    print(f"\n{framework}: {seconds:.1f} s from the last step before to the first after, {status['recoveries'][-1]}")


def columns(job: Job) -> dict[str, str]:
    """Returns the row that `kubectl get dtj -o wide` prints for a job."""
    header, row = job.kubectl("get", "dtj", job.name, "-o", "wide").splitlines()
    heads = header.split()
    starts = [header.index(head) for head in heads]
    ends: list[Any] = [*starts[1:], None]
    return {head: row[begin:end].strip() for head, begin, end in zip(heads, starts, ends, strict=True)}


def test_untouched_transformers_script_shows_step_loss_and_end_in_kubectl_get(start: Start) -> None:
    job = start("transformers", "columns", PAUSE=0.5, STEPS=400)
    until_step(job, 1)
    first = group_steps(job)[0][0]
    shown: dict[str, str] = {}
    while not all(shown.get(head) for head in ("STEP", "LOSS", "ETA")):
        late = time.monotonic() - first
        assert late < SHOWN_SECONDS, f"{late:.1f} s after the first step: {shown}"
        shown = columns(job)
    print(f"\n{time.monotonic() - first:.1f} s after the first step: {shown}")
    assert 0 < int(shown["STEP"]) < 400
    assert 0 < float(shown["LOSS"]) < 10
    job.delete()


def test_sdk_of_kubeflow_reports_its_progress(start: Start) -> None:
    status = start("sdk", "sdk", "sdk.py").wait("Complete", LIMIT)["status"]
    progress = status["progress"]
    assert (progress["step"], progress["totalSteps"], progress["loss"]) == (12, 30, 0.5)
