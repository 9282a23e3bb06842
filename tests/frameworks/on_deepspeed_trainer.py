"""`Trainer` with strategy deepspeed and the real package: as with ddp, killed, at another number of ranks, scaled.

`make test-long` runs this file, in the environment that hack/frameworks.sh builds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.frameworks.jobs import LIMIT, losses, scaled_run, train

SCRIPT = Path(__file__).with_name("deepspeed_trainer_script.py")
STEPS, EVERY, KILL_AT = 24, 4, 15
pytestmark = [
    pytest.mark.timeout(4 * LIMIT),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="deepspeed is not installed: hack/frameworks.sh installs it",
    ),
]
ON_CPU = {"device": "cpu"}
FILES: dict[str, dict[str, Any]] = {
    "zero1": {"zero_optimization": {"stage": 1}},
    "zero2": {"zero_optimization": {"stage": 2}, "train_batch_size": "auto"},
    "zero3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    "zero2-offload": {
        "zero_optimization": {"stage": 2, "offload_optimizer": ON_CPU},
        "zero_force_ds_cpu_optimizer": False,
    },
    # Decides everything, as the config of the run does without it.
    "own": {
        "train_batch_size": 8,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    },
    "bf16": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}},
    "fp16": {"fp16": {"enabled": True}, "zero_optimization": {"stage": 2}},
}


HALF = ("bf16", "fp16")


def file(folder: Path, kind: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ds_config.json"
    path.write_text(json.dumps(FILES[kind]))
    return str(path)


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Trains the same with strategy ddp."""
    folder = tmp_path_factory.mktemp("ddp")
    return folder, train(folder, SCRIPT, str(folder))[0]


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind not in HALF])
def test_killed_training_ends_as_the_undisturbed_one_and_as_ddp(
    kind: str, tmp_path: Path, ddp: tuple[Path, dict[str, Any]]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference, _ = train(whole, SCRIPT, str(whole), file(whole, kind))
    found, status = train(killed, SCRIPT, str(killed), file(killed, kind), kill="3")
    assert losses(whole) == pytest.approx(losses(ddp[0]), rel=1e-4)
    assert reference["error"] == pytest.approx(ddp[1]["error"], rel=1e-4)
    assert losses(killed) == pytest.approx(losses(whole), abs=1e-9)
    assert found == reference | {"resumed": KILL_AT // EVERY * EVERY}
    assert (status["attempt"], status["restarts"]["inPlace"]) == (2, 1)
    assert status["checkpoint"]["step"] == STEPS


def test_accumulated_micro_batches_give_the_same_steps(tmp_path: Path, ddp: tuple[Path, dict[str, Any]]) -> None:
    train(tmp_path, SCRIPT, str(tmp_path), file(tmp_path, "zero2"), "1")
    assert losses(tmp_path) == pytest.approx(losses(ddp[0]), rel=1e-4)


@pytest.mark.parametrize("kind", HALF)
def test_half_precision_trains_nearly_as_fp32(kind: str, tmp_path: Path, ddp: tuple[Path, dict[str, Any]]) -> None:
    found, _ = train(tmp_path, SCRIPT, str(tmp_path), file(tmp_path, kind))
    assert found["error"] == pytest.approx(ddp[1]["error"], rel=0.05)
    assert found["error"] != ddp[1]["error"]


def test_settings_that_deepspeed_rejects_are_named_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2, "offload_optimizer": ON_CPU}}))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=1",
        str(SCRIPT),
        str(tmp_path),
        str(path),
    ]
    environ = {**os.environ, "STEPS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0
    assert f"ConfigError: strategy.config {path}: DeepSpeed rejects it: You are using ZeRO-Offload" in done.stderr


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_training_continues_with_fewer_ranks_and_then_with_more(
    kind: str, tmp_path: Path, ddp: tuple[Path, dict[str, Any]]
) -> None:
    found = [
        train(tmp_path, SCRIPT, str(tmp_path), file(tmp_path, kind), steps=steps, replicas=pods)[0]
        for steps, pods in ((8, 2), (16, 1), (STEPS, 2))
    ]
    assert [(each["world"], each["resumed"], each["step"]) for each in found] == [(4, 0, 8), (2, 8, 16), (4, 16, STEPS)]
    assert losses(tmp_path) == pytest.approx(losses(ddp[0]), rel=1e-4)
    saved = sorted(path.name for path in tmp_path.glob("volumes/**/step-*") if path.is_dir())
    assert saved == ["step-00000016", "step-00000020", "step-00000024"]
    assert not list(tmp_path.glob("volumes/**/.*-step-*"))


def test_scaled_training_saves_on_sigterm_and_loses_no_step(tmp_path: Path) -> None:
    steps = 4000  # more than pass while the pod that comes back imports DeepSpeed
    job = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "zero"},
        "spec": {
            "replicas": 2,
            "processesPerPod": 2,
            "image": "unused",
            "backend": "gloo",
            "elastic": {"minReplicas": 1, "maxReplicas": 2},
            "entrypoint": {"script": str(SCRIPT), "args": [str(tmp_path), file(tmp_path, "zero2")]},
            "env": [{"name": "STEPS", "value": str(steps)}],
            "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 400},
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    scaled_run(tmp_path, tmp_path / "job.yaml")
    assert sorted(losses(tmp_path)) == list(range(1, steps + 1))
    assert losses(tmp_path)[steps] < 0.1 * losses(tmp_path)[1]
