"""Jobs of the tests of DeepSpeed and Composer under `dtj run`, on two pods of two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from tests.lib.waiting import wait_until

ROOT = Path(__file__).parents[2]
RUN = (sys.executable, "-m", "dtj.main", "run", "--plain", "-o", "json", "--logs")
LIMIT = 600


def dtj_run(folder: Path, job: Path, *flags: str, logs: list[str] | None = None, code: int = 0) -> dict[str, Any]:
    """Returns the status of a job that ends with the exit code, and adds its output to `logs`."""
    began = time.monotonic()
    done = subprocess.run(
        [*RUN, "--volumes-dir", str(folder / "volumes"), *flags, str(job)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True, text=True, timeout=LIMIT, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    print(f"{job}: {time.monotonic() - began:.1f} s")
    if logs is not None:
        logs.append(done.stderr)
    status: dict[str, Any] = json.loads(done.stdout)["status"]
    return status


def job_file(folder: Path, **spec: Any) -> Path:
    """Writes the file of a job on processors into the folder, which is made if it does not exist."""
    job = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "small"},
        "spec": {"backend": "gloo", **spec},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def train(
    folder: Path, script: Path, *args: str, replicas: int = 2, every: int = 4, steps: int = 24, kill: str = "",
    **spec: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Returns the result that the script writes into the folder, and the job's status.

    `kill`: the rank that kills itself.
    """
    job = job_file(
        folder,
        replicas=replicas,
        processesPerPod=2,
        image="unused",
        engine="deepspeed",
        entrypoint={"script": str(script), "args": list(args)},
        env=[{"name": "KILL", "value": kill}, {"name": "STEPS", "value": str(steps)}],
        checkpoint={"volume": {"claimName": "shared"}, "everySteps": every},
        restart={"maxRestarts": 1},
        **spec,
    )
    status = dtj_run(folder, job, "--run-dir", str(folder / f"run-{time.monotonic_ns()}"))
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found, status


def scaled_run(folder: Path, job: Path, logs: list[str] | None = None) -> dict[str, Any]:
    """Returns the status of a completed job that was scaled to one pod and back to two while it trained."""
    run_dir = folder / "run"

    def status() -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((run_dir / "status.json").read_text()).get("status") or {}
        except (OSError, ValueError):  # not there yet
            return {}
        return found

    def scale() -> None:
        for attempt, pods in ((1, 1), (2, 2)):
            wait_until(f"attempt {attempt} trains", lambda attempt=attempt: trains(status(), attempt), timeout=LIMIT)
            command = [sys.executable, "-m", "dtj.main", "scale", str(run_dir), "--replicas", str(pods)]
            subprocess.run(command, check=True, timeout=LIMIT)

    with ThreadPoolExecutor() as threads:
        scaling = threads.submit(scale)
        done = dtj_run(folder, job, "--run-dir", str(run_dir), logs=logs)
        scaling.result()
    changes = [(r["reason"], r["fromReplicas"], r["toReplicas"], r.get("lostSteps")) for r in done["recoveries"]]
    assert changes == [("GroupShrunk", 2, 1, 0), ("GroupGrown", 1, 2, 0)], changes
    assert done["restarts"]["counted"] == 0
    return done


def trains(status: dict[str, Any], attempt: int) -> bool:
    """Returns whether a running job has done a step of `attempt`.

    A recovery is listed as soon as its attempt starts, and the step that it resumed from is known later.
    """
    resumed = [recovery.get("resumedStep") for recovery in status.get("recoveries", [])]
    if len(resumed) != attempt - 1 or None in resumed:
        return False
    step: int = status.get("progress", {}).get("step", 0)
    return step > max(resumed, default=0)


def losses(folder: Path) -> dict[int, float]:
    """Returns the loss of each step, the last one where a step was repeated."""
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}
