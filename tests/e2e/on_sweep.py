"""`dtj tune --cluster` on kind: trials are jobs of the operator; the sweep and a trial's pod are killed.

One sweep is random. Another is a population, whose trials start from each other's checkpoints on the shared volume.

`make test-long` runs this file. The script is a ConfigMap's, and the image the trainer's, of which only Python is used.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.images.recipes import ROOT
from tests.e2e.kit import DTJ, Kubectl, Object, is_true, wait_until

SCRIPT = ROOT / "examples/sweep/train.py"
NAME, TRIALS, PARALLEL, STEPS = "search", 6, 2, 60
POPULATION, EACH = 2, 30
"""Trials of a generation, and its steps."""
LIMIT = 900
pytestmark = pytest.mark.timeout(2 * LIMIT)


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """Starts no idle job, which only test_idle_job.py needs."""


class Sweep:
    """`dtj tune --cluster` in a folder, started as often as it is killed."""

    def __init__(self, folder: Path, kubectl: Kubectl, image: str, algorithm: Object) -> None:
        self.folder = folder
        self.kubectl = kubectl
        self.process: subprocess.Popen[bytes] | None = None
        container = {
            "name": "trainer",
            "workingDir": "/app",
            "volumeMounts": [{"name": "script", "mountPath": "/app/script", "readOnly": True}],
        }
        pod = {"containers": [container], "volumes": [{"name": "script", "configMap": {"name": "script"}}]}
        spec: Object = {
            "image": image,
            "backend": "gloo",
            "warmWorkers": "Never",
            "entrypoint": {
                "script": f"script/{SCRIPT.name}",
                "args": ["--steps", str(STEPS), "--step-seconds", "1"],
            },
            "checkpoint": {"volume": {"claimName": "shared"}},
            "template": {"spec": pod},
        }
        document = {
            "apiVersion": "training.dtj.dev/v1alpha1",
            "kind": "DistributedTrainingSweep",
            "metadata": {"name": NAME},
            "spec": {
                "objective": {"metric": "val_loss"},
                "parameters": {
                    "lr": {"type": "float", "min": 0.001, "max": 10, "log": True},
                    "momentum": {"type": "float", "min": 0, "max": 0.95},
                    "decay": {"type": "choice", "values": ["none", "cosine"]},
                },
                "trials": TRIALS,
                "parallel": PARALLEL,
                "algorithm": algorithm,
                "job": {"spec": spec},
            },
        }
        (folder / "sweep.yaml").write_text(yaml.safe_dump(document))

    def begin(self) -> subprocess.Popen[bytes]:
        """Starts `dtj tune`, or continues with it."""
        command = [sys.executable, "-m", "dtj.main", "tune", "sweep.yaml", "--dir", "sweep", "--plain", "--cluster"]
        with (self.folder / "tune.out").open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "-n", self.kubectl.namespace], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out,
            )  # fmt: skip
        return self.process

    def output(self) -> str:
        return (self.folder / "tune.out").read_text()

    def jobs(self) -> dict[str, Object]:
        """Returns the jobs of the sweep by name."""
        found = self.kubectl.list(DTJ, f"training.dtj.dev/sweep={NAME}")
        return {job["metadata"]["name"]: job for job in found}

    def trials(self) -> dict[int, tuple[str, float]]:
        """Returns state and value of each trial by number. Fails if a number is there twice."""
        with sqlite3.connect(f"file:{self.folder}/sweep/sweep.db?mode=ro", uri=True) as storage:
            rows = storage.execute(
                "select number, state, value from trials left join trial_values using (trial_id) order by number"
            ).fetchall()
        assert len({number for number, *_ in rows}) == len(rows), rows
        return {number: (state, value) for number, state, value in rows}


@pytest.fixture
def algorithm() -> Object:
    return {"name": "random", "seed": 5}


@pytest.fixture
def sweep(kubectl: Kubectl, images: dict[str, str], algorithm: Object, tmp_path: Path) -> Iterator[Sweep]:
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}}
    kubectl.apply(script | {"data": {SCRIPT.name: SCRIPT.read_text()}})
    found = Sweep(tmp_path, kubectl, images["trainer"], algorithm)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


def step(job: Object) -> int:
    return int((job.get("status", {}).get("progress") or {}).get("step") or 0)


def alone(args: list[str], folder: Path, environ: dict[str, str] | None = None) -> tuple[int, float]:
    """Returns the last step and loss that the script prints with these arguments, alone and undisturbed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *args, "--step-seconds", "0"],
        env={**os.environ, **(environ or {}), "DTJ_CHECKPOINT_DIR": str(folder)}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    label, step, _, loss = done.stdout.splitlines()[-1].split()
    assert label == "step"
    return int(step), float(loss)


def test_killed_sweep_and_killed_pod_leave_each_trial_once(sweep: Sweep, tmp_path: Path) -> None:
    process = sweep.begin()

    def training() -> list[Object]:
        assert process.poll() is None, sweep.output()
        return [job for job in sweep.jobs().values() if 0 < step(job) < STEPS and is_true(job, "Running")]

    wait_until("a trial trains", training, timeout=300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {name: job["metadata"]["uid"] for name, job in sweep.jobs().items()}
    assert 1 <= len(before) <= PARALLEL

    process = sweep.begin()
    first = wait_until("a trial trains again", training, timeout=300)[0]["metadata"]["name"]
    killed = sweep.kubectl.get("pod", f"{first}-0")
    assert killed is not None
    sweep.kubectl("delete", "pod", f"{first}-0", "--wait=false", "--grace-period=0", "--force")

    def is_replaced() -> bool:
        pod = sweep.kubectl.get("pod", f"{first}-0")
        return pod is not None and pod["metadata"]["uid"] != killed["metadata"]["uid"]

    wait_until("the killed pod comes back", is_replaced, timeout=120)
    most = 0

    def is_over() -> bool:
        nonlocal most
        jobs = sweep.jobs().values()
        most = max(most, sum(not is_true(job, "Complete") and not is_true(job, "Failed") for job in jobs))
        return process.poll() is not None

    wait_until("the end of the sweep", is_over, timeout=LIMIT, detail=sweep.output)
    assert process.returncode == 0, sweep.output()
    jobs = sweep.jobs()
    assert sorted(jobs) == [f"{NAME}-{number:04d}" for number in range(TRIALS)]
    assert {name: jobs[name]["metadata"]["uid"] for name in before} == before, "a job was created again"
    assert 1 <= most <= PARALLEL
    assert jobs[first]["status"]["attempt"] >= 2, "the killed pod began an attempt of its own"
    trials = sweep.trials()
    assert [(number, state) for number, (state, _) in trials.items()] == [(n, "COMPLETE") for n in range(TRIALS)]
    for number, (_, value) in trials.items():
        args: list[Any] = jobs[f"{NAME}-{number:04d}"]["spec"]["entrypoint"]["args"]
        assert alone(args, tmp_path / f"alone-{number}") == pytest.approx((STEPS, value), abs=1e-4), args
    best = json.loads((tmp_path / "sweep/best/best.json").read_text())
    assert best["value"] == min(value for _, value in trials.values())
    assert best["volume"] == {"claimName": "shared"}
    assert best["checkpoint"]["step"] == STEPS


@pytest.mark.parametrize(
    "algorithm", [{"name": "pbt", "seed": 2, "population": POPULATION, "stepsPerGeneration": EACH}]
)
def test_population_trains_on_from_the_checkpoints_of_other_jobs(sweep: Sweep, tmp_path: Path) -> None:
    """The loss of each trial is that of the script alone, run generation after generation in sibling folders."""
    process = sweep.begin()

    def later_trial() -> str | None:
        assert process.poll() is None, sweep.output()
        jobs = sweep.jobs().items()
        return next((name for name, job in jobs if int(name[-4:]) >= POPULATION and is_true(job, "Running")), None)

    name = wait_until("a trial of the second generation", later_trial, timeout=LIMIT, detail=sweep.output)
    process.kill()
    process.wait()
    sweep.kubectl("delete", "pod", f"{name}-0", "--wait=false", "--grace-period=0", "--force")
    process = sweep.begin()
    wait_until("the end of the sweep", lambda: process.poll() is not None, timeout=LIMIT, detail=sweep.output)
    assert process.returncode == 0, sweep.output()
    jobs, trials = sweep.jobs(), sweep.trials()
    assert sorted(jobs) == [f"{NAME}-{number:04d}" for number in range(TRIALS)]
    begins_at = []
    for number, (name, job) in enumerate(sorted(jobs.items())):
        variables = {each["name"]: each["value"] for each in job["spec"]["env"]}
        begins_at.append(variables.get("TUNE_FROM"))
        last = EACH * (number // POPULATION + 1)
        found = alone(job["spec"]["entrypoint"]["args"], tmp_path / "alone" / name, variables)
        assert found == pytest.approx((last, trials[number][1]), abs=1e-4), job["spec"]
        assert job["status"]["checkpoint"]["step"] == last
    assert begins_at[:POPULATION] == [None] * POPULATION
    assert all(begins_at[POPULATION:])
    assert any(begin != f"{NAME}-{number - POPULATION:04d}" for number, begin in enumerate(begins_at) if begin)
    assert {state for state, _ in trials.values()} == {"COMPLETE"}
