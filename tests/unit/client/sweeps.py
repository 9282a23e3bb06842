"""`dtj tune` as a process, and what a sweep leaves in its folder."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from dtj.tune.local_jobs import LocalTrialJobs
from tests.lib.waiting import wait_until

SCRIPT = Path(__file__).parents[3] / "examples/sweep/train.py"
LONG = 600.0
"""Seconds for a whole sweep on a busy machine."""


def sweep(steps: int = 20, step_seconds: float = 0.05, **fields: Any) -> dict[str, Any]:
    """Returns a sweep of the example's script, with other fields of its spec."""
    args = ["--steps", str(steps), "--step-seconds", str(step_seconds)]
    spec: dict[str, Any] = {
        "objective": {"metric": "val_loss"},
        "parameters": {
            "lr": {"type": "float", "min": 0.001, "max": 10, "log": True},
            "momentum": {"type": "float", "min": 0, "max": 0.95},
            "decay": {"type": "choice", "values": ["none", "cosine"]},
        },
        "trials": 4,
        "parallel": 2,
        "algorithm": {"name": "random", "seed": 3},
        "job": {
            "spec": {
                "image": "unused",
                "backend": "gloo",
                "warmWorkers": "Never",
                "entrypoint": {"script": str(SCRIPT), "args": args},
                "checkpoint": {"volume": {"claimName": "sweep"}},
            }
        },
    }
    return {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingSweep",
        "metadata": {"name": "search"},
        "spec": {**spec, **fields},
    }


class TuneRun:
    """A sweep in a folder, with any number of `dtj tune` processes one after the other."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self.folder = folder
        self.sweep = folder / "sweep"
        self.jobs = LocalTrialJobs(self.sweep, "val_loss")
        self.process: subprocess.Popen[bytes] | None = None
        self.document = document

    def write(self) -> None:
        """Writes sweep.yaml."""
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(self.document))

    def begin(self, *flags: str) -> subprocess.Popen[bytes]:
        """Starts `dtj tune`."""
        self.write()
        command = [sys.executable, "-m", "dtj.main", "tune", "sweep.yaml", "--dir", "sweep", *flags]
        with (self.folder / "tune.out").open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        return self.process

    def end(self, seconds: float = LONG) -> int:
        """Waits for the end of the process. Returns its exit code."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s:\n{self.output()}") from None

    def run(self, *flags: str) -> int:
        self.begin(*flags)
        return self.end()

    def output(self) -> str:
        return (self.folder / "tune.out").read_text()

    def trials(self) -> dict[int, tuple[str, float | None]]:
        """Returns state and final value by number, as the storage has them. Fails if a number is there twice."""
        with sqlite3.connect(f"file:{self.sweep}/sweep.db?mode=ro", uri=True) as storage:
            rows = storage.execute(
                "select number, state, value from trials left join trial_values using (trial_id) order by number"
            ).fetchall()
        assert len({number for number, *_ in rows}) == len(rows), rows
        return {number: (state, value) for number, state, value in rows}

    def starts(self) -> dict[int, int]:
        """Returns how often the job of each trial was started."""
        folders = sorted((self.sweep / "trials").glob("[0-9]*"))
        return {int(folder.name): len(list(folder.glob("start-*"))) for folder in folders}

    def args(self, number: int) -> list[str]:
        """Returns the arguments of a trial's script."""
        job = yaml.safe_load((self.sweep / f"trials/{number:04d}/job.yaml").read_text())
        found: list[str] = job["spec"]["entrypoint"]["args"]
        return found

    def status(self, number: int) -> dict[str, Any]:
        """Returns a trial's job with the status of its last start; {} before there is one."""
        path = self.sweep / f"trials/{number:04d}/start-{self.starts().get(number, 0)}/run/status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def uid(self, number: int) -> str:
        """Returns the uid of a trial's run, by which its processes are found."""
        return str(self.status(number)["metadata"]["uid"])

    def saved_step(self, number: int) -> int:
        """Returns the step of the trial's checkpoint, or -1."""
        path = self.sweep / f"volumes/sweep/default/search-{number:04d}/state.json"
        return int(json.loads(path.read_text())["step"]) if path.exists() else -1

    def until_saved(self, step: int) -> int:
        """Waits until a trial that runs has a checkpoint of at least this step. Returns its number."""
        found = wait_until(
            f"a checkpoint of step {step}",
            lambda: [n for n in self.jobs.active() if self.saved_step(n) >= step],
            timeout=LONG,
            detail=self.output,
        )
        return found[0]

    def until_started(self, number: int) -> None:
        """Waits until the trial's job has a status."""
        wait_until(f"a status of trial {number}", lambda: self.status(number), timeout=LONG, detail=self.output)

    def kill_rest(self) -> None:
        """Ends all processes, whatever the test's result."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for number in self.jobs.active():
            pid = (self.sweep / f"trials/{number:04d}/lock").read_text().strip()
            if pid.isdecimal():
                os.kill(int(pid), 9)
