"""A sweep in a folder of its own: `dtj tune` as a process, started as often as it is killed, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dtj.local.conditions import is_true
from dtj.tune.local_jobs import LocalTrialJobs
from dtj_contract import names

SCRIPT = Path(__file__).parents[2] / "examples/sweep/train.py"
NAME, METRIC = "figure", "val_loss"
TRIALS, PARALLEL, STEPS, STEP_SECONDS = 40, 4, 60, 0.25
LOOK_SECONDS = 0.1
LIMIT_SECONDS = 1800.0
ASHA = {"name": "asha", "minSteps": 10, "reductionFactor": 2}


def document(seed: int, pruner: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the sweep. With random search, the parameters of a trial depend on the seed and its number alone."""
    return {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingSweep",
        "metadata": {"name": NAME},
        "spec": {
            "objective": {"metric": METRIC},
            "parameters": {
                "lr": {"type": "float", "min": 0.001, "max": 10, "log": True},
                "momentum": {"type": "float", "min": 0, "max": 0.95},
                "decay": {"type": "choice", "values": ["none", "cosine"]},
            },
            "trials": TRIALS,
            "parallel": PARALLEL,
            "algorithm": {"name": "random", "seed": seed},
            "pruner": pruner or {"name": "none"},
            "job": {
                "spec": {
                    "image": "unused",
                    "backend": "gloo",
                    "warmWorkers": "Never",
                    "entrypoint": {
                        "script": str(SCRIPT),
                        "args": ["--steps", str(STEPS), "--step-seconds", str(STEP_SECONDS)],
                    },
                    "checkpoint": {"volume": {"claimName": "sweep"}},
                }
            },
        },
    }


class SweepRun:
    """One sweep, which is continued after each kill."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.folder = folder
        self.sweep = folder / "sweep"
        self.jobs = LocalTrialJobs(self.sweep, METRIC)
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "sweep.yaml").write_text(yaml.safe_dump(content))

    def begin(self) -> None:
        """Starts `dtj tune`, or continues with it."""
        command = [sys.executable, "-m", "dtj.main", "tune", "sweep.yaml", "--dir", "sweep", "--plain"]
        with (self.folder / "tune.out").open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def run(self, disturb: Callable[[SweepRun, int], None] | None = None) -> tuple[float, int]:
        """Runs the sweep to its end. Returns its seconds, and the most trials that were seen at once.

        `disturb` is called with the number of finished trials, and may kill: `dtj tune` is then started again.
        """
        began, most = time.monotonic(), 0
        self.begin()
        while True:
            assert self.process is not None
            code = self.process.poll()
            if code is not None and code >= 0:
                break
            if time.monotonic() - began > LIMIT_SECONDS:
                raise TimeoutError(f"the sweep does not end: {self.output()[-2000:]}")
            if code is not None:
                self.begin()
            most = max(most, len(self.jobs.active()))
            if disturb is not None and self.storage.exists():
                disturb(self, self.finished())
            time.sleep(LOOK_SECONDS)
        if code:
            raise RuntimeError(f"dtj tune ended with {code}: {self.output()[-2000:]}")
        return time.monotonic() - began, most

    @property
    def storage(self) -> Path:
        """The study of the sweep."""
        return self.sweep / "sweep.db"

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Reads the storage; [] while it has no tables, and while a disturbance holds it."""
        try:
            with sqlite3.connect(f"file:{self.storage}?mode=ro", uri=True, timeout=0) as storage:
                return storage.execute(text).fetchall()
        except sqlite3.OperationalError:
            return []

    def finished(self) -> int:
        """Returns how many trials have ended."""
        return len(self.query("select number from trials where state in ('COMPLETE', 'PRUNED', 'FAIL')"))

    def output(self) -> str:
        """Returns what all `dtj tune` of the sweep have printed."""
        return (self.folder / "tune.out").read_text(errors="replace")

    def lock_pid(self, number: int) -> int:
        """Returns the process of a trial."""
        return int((self.sweep / f"trials/{number:04d}/lock").read_text())

    def statuses(self, number: int) -> list[dict[str, Any]]:
        """Returns the trial's job as each of its starts left it."""
        folder = self.sweep / f"trials/{number:04d}"
        starts = sorted(folder.glob("start-*"), key=lambda path: int(path.name.removeprefix("start-")))
        paths = [start / "run/status.json" for start in starts]
        return [json.loads(path.read_text()) if path.exists() else {} for path in paths]

    def close(self) -> None:
        """Ends what still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for number in self.jobs.active():
            os.kill(self.lock_pid(number), signal.SIGKILL)

    def found(self) -> dict[str, Any]:
        """Returns the trials as the storage has them, and how often their jobs were started and completed."""
        rows = self.query(
            "select number, state, value from trials left join trial_values using (trial_id) order by number"
        )
        drawn = self.query("select number, param_name, param_value from trials join trial_params using (trial_id)")
        params: dict[int, dict[str, float]] = {}
        for number, name, value in drawn:
            params.setdefault(number, {})[name] = value
        steps = dict(
            self.query(
                "select number, max(step) from trials join trial_intermediate_values using (trial_id) group by 1"
            )
        )
        folders = sorted(int(path.name) for path in (self.sweep / "trials").iterdir())
        starts = {number: self.statuses(number) for number in folders}
        completed = {number: sum(is_true(one, names.COMPLETE) for one in found) for number, found in starts.items()}
        states = Counter(state for _, state, _ in rows)
        numbers = [number for number, *_ in rows]
        best = json.loads((self.sweep / "best/best.json").read_text())
        return {
            "complete": states["COMPLETE"],
            "pruned": states["PRUNED"],
            "failed": states["FAIL"],
            "doubled": len(numbers) - len(set(numbers))
            + len(set(folders) - set(numbers))
            + sum(count > 1 for count in completed.values())
            + len(params) - len({tuple(sorted(each.items())) for each in params.values()}),
            "starts": sum(map(len, starts.values())),
            "steps": sum(steps.values()),
            "best": best["value"],
            "best_trial": best["trial"],
            "results": [[number, state, value] for number, state, value in rows],
            "params": [params[number] for number in sorted(params)],
        }  # fmt: skip
