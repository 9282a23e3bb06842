"""Engines with their real packages: undisturbed, and with a rank killed halfway, to the same result.

`make test-long` runs this file, in the environments that hack/engines.sh builds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
RUN = (sys.executable, "-m", "dtj.main", "run", "--plain", "-o", "json", "--logs")
LIMIT = 600
STEPS, EVERY, KILL_AT = 24, 4, 15
pytestmark = pytest.mark.timeout(3 * LIMIT)
# Engine, package, and the argument of the engine's script.
KINDS = {
    "jax with its own file": ("jax", "jax", "npz"),
    "jax with orbax": ("jax", "orbax.checkpoint", "orbax"),
    "horovod with torch": ("horovod", "horovod", "torch"),
    "horovod with an elastic state": ("horovod", "horovod", "elastic"),
    "ray with its TorchTrainer": ("ray", "ray", "train"),
    "tensorflow with its CheckpointManager": ("tensorflow", "tensorflow", "manager"),
}
LAST_RANK = {"ray": "1"}
"""The last of two pods' ranks, where a pod does not have two."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    package = KINDS[name][1]
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed: hack/engines.sh installs it")
    return name


def train(kind: str, folder: Path, kill: str = "", **spec: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the result and the job's status. `kill`: the rank that kills itself."""
    engine, _, argument = KINDS[kind]
    job = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": engine},
        "spec": {
            "replicas": 2,
            "processesPerPod": 2,
            "image": "unused",
            "engine": engine,
            "entrypoint": {"script": str(HERE / f"{engine}_script.py"), "args": [argument, str(folder)]},
            # Horovod sums tensors together that are ready at the same time, so the order of additions is chance.
            "env": [{"name": "KILL", "value": kill}, {"name": "HOROVOD_FUSION_THRESHOLD", "value": "0"}],
            "restart": {"maxRestarts": 1},
            **spec,
        },
    }
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(
        [*RUN, "--run-dir", str(folder / "run"), str(folder / "job.yaml")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=LIMIT, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found, json.loads(done.stdout)["status"]


@pytest.fixture(scope="module")
def wholes() -> dict[str, dict[str, Any]]:
    """The results of undisturbed runs."""
    return {}


def whole(kind: str, folder: Path, wholes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if kind not in wholes:
        wholes[kind], status = train(kind, folder / "whole")
        assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    return wholes[kind]


def test_four_ranks_in_two_pods_are_one_group(kind: str, tmp_path: Path, wholes: dict[str, dict[str, Any]]) -> None:
    found = whole(kind, tmp_path, wholes)
    assert (found["world"], found["step"], found["resumed"]) == (4, STEPS, 0)


@pytest.mark.parametrize("place", ["first", "last"])
def test_killed_training_ends_with_the_undisturbed_result(
    kind: str, place: str, tmp_path: Path, wholes: dict[str, dict[str, Any]]
) -> None:
    """Rank 0 has the coordinator of JAX and the head of Ray, and is the chief of TensorFlow."""
    rank = "0" if place == "first" else LAST_RANK.get(KINDS[kind][0], "3")
    reference = whole(kind, tmp_path, wholes)
    began = time.monotonic()
    found, status = train(kind, tmp_path / "killed", kill=rank)
    print(f"{kind}, rank {rank}: {time.monotonic() - began:.1f} s, {json.dumps(status.get('recoveries'))}")
    assert found["sum"] == pytest.approx(reference["sum"], abs=1e-9)
    assert found["loss"] == pytest.approx(reference["loss"], abs=1e-9)
    assert (found["step"], found["resumed"]) == (STEPS, KILL_AT // EVERY * EVERY)
    assert (status["attempt"], status["restarts"]["inPlace"]) == (2, 1)
    assert any(str(failure["rank"]) == rank and failure["signal"] == "SIGKILL" for failure in status["failures"])
