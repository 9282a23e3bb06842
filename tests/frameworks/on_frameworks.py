"""Frameworks with their real packages: undisturbed as under torchrun, and killed halfway with the same result.

`make test-long` runs this file, in an environment that hack/frameworks.sh builds.
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

SCRIPT = Path(__file__).with_name("scripts.py")
BARE = ("plain", "gpt", "fsdp2")
"""Scripts of torch alone."""
FRAMEWORKS = (*BARE, "deepspeed", "transformers", "accelerate", "lightning")
RUN = (sys.executable, "-m", "dtj.main", "run", "--plain", "-o", "json")
LIMIT = 900
pytestmark = pytest.mark.timeout(3 * LIMIT)
STEPS = 24

SDK_SCRIPT = """
from kubeflow.trainer.backends.kubernetes.utils import update_trainjob_status
assert update_trainjob_status(40, 90, {"loss": 0.5, "step": 12, "total_steps": 30})
"""
"""A script that reports by Kubeflow's SDK."""


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in BARE and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: hack/frameworks.sh installs it")
    return name


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", **more}


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def under_torchrun(framework: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(SCRIPT), framework, str(folder)]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return result(folder)


def run_dtj(framework: str, folder: Path, *, warm: str, **variables: str) -> subprocess.CompletedProcess[str]:
    job = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": framework},
        "spec": {
            "replicas": 1,
            "processesPerPod": 2,
            "image": "unused",
            "backend": "gloo",
            "engine": "deepspeed" if framework == "deepspeed" else "torch",
            "entrypoint": {"script": str(SCRIPT), "args": [framework, str(folder)]},
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "warmWorkers": warm,
            "restart": {"maxRestarts": 1},
        },
    }
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return subprocess.run(
        [*RUN, "--logs", "--run-dir", str(folder / "run"), str(folder / "job.yaml")],
        env=environ(), capture_output=True, text=True, timeout=LIMIT, cwd=folder,
    )  # fmt: skip


def under_dtj(framework: str, folder: Path, *, warm: str, kill: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the result and the job's status."""
    done = run_dtj(framework, folder, warm=warm, **({"KILL": "1"} if kill else {}))
    assert done.returncode == 0, done.stdout + done.stderr
    return result(folder), json.loads(done.stdout)["status"]


def processes_of(folder: Path) -> list[str]:
    """Returns the commands of this machine's processes that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.parametrize("warm", ["Auto", "Never"])
def test_undisturbed_training_ends_as_under_torchrun(framework: str, warm: str, tmp_path: Path) -> None:
    reference = under_torchrun(framework, tmp_path / "torchrun")
    found, status = under_dtj(framework, tmp_path / "dtj", warm=warm)
    assert found["step"] == reference["step"] == STEPS
    assert found["sum"] == pytest.approx(reference["sum"], abs=1e-6)
    progress = status.get("progress", {})
    if warm == "Auto":
        assert progress["step"] > 0
    else:  # a hook counts steps, and only forked workers have it
        assert "step" not in progress
        assert ("percent" in progress) == (framework == "transformers"), "its own callback reports"


@pytest.mark.parametrize("warm", ["Auto", "Never"])
def test_killed_training_ends_with_the_undisturbed_result(framework: str, warm: str, tmp_path: Path) -> None:
    whole, _ = under_dtj(framework, tmp_path / "whole", warm="Auto")
    found, status = under_dtj(framework, tmp_path / "killed", warm=warm, kill=True)
    assert found["step"] == STEPS
    assert found["sum"] == pytest.approx(whole["sum"], abs=1e-6)
    assert status["restarts"]["counted"] == 1
    assert any(failure["signal"] == "SIGKILL" and failure["rank"] == 1 for failure in status["failures"])


@pytest.mark.parametrize("warm", ["Auto", "Never"])
def test_failed_training_reports_its_own_error_and_leaves_nothing(framework: str, warm: str, tmp_path: Path) -> None:
    done = run_dtj(framework, tmp_path / "failed", warm=warm, FAIL="1")
    assert done.returncode == 1, done.stdout + done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["restarts"]["counted"]) == ("Failed", 1)
    failure = status["failures"][-1]
    assert (failure["rank"], failure["exitCode"]) == (1, 1)
    assert "ValueError: planted in the training" in failure["message"]
    assert done.stderr.count("ValueError: planted in the training") >= 2, "once in the log of each attempt"
    assert not processes_of(tmp_path / "failed")


def test_transformers_reports_its_progress_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _, status = under_dtj("transformers", tmp_path / "hf", warm="Never")
    assert (status["progress"]["totalSteps"], status["progress"]["percent"]) == (STEPS, 100)
    assert 0 < status["progress"]["loss"] < 10
    assert "learning_rate" in status["progress"]["metrics"]


def test_sdk_of_kubeflow_reports_its_progress(tmp_path: Path) -> None:
    pytest.importorskip("kubeflow.trainer")
    script = tmp_path / "sdk.py"
    script.write_text(SDK_SCRIPT)
    done = subprocess.run(
        [*RUN, "--run-dir", str(tmp_path / "run"), "--", str(script)],
        env=environ(), capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    progress = json.loads(done.stdout)["status"]["progress"]
    assert (progress["step"], progress["totalSteps"], progress["loss"]) == (12, 30, 0.5)
