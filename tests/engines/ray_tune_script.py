"""A sweep of Ray as people write it.

ray_tune_script.py tune FOLDER

A Tuner runs four trials of eight steps on both Ray nodes. The trial with rate 0.2 kills itself once at step 5, and
Ray restores it from its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune

STEPS, KILL_AT = 8, 5
RATES = [0.1, 0.2, 0.3, 0.4]


def trial(config: dict[str, Any]) -> None:
    step, x = 0, 4.0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step, x = json.loads(Path(folder, "state.json").read_text())
    while step < STEPS:
        step, x = step + 1, x - config["rate"] * 2 * x
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([step, x]))
            metrics = {"step": step, "loss": abs(config["rate"] - 0.1), "node": ray.get_runtime_context().get_node_id()}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
        killed = Path(config["folder"], "killed")
        if config["rate"] == 0.2 and step == KILL_AT and not killed.exists():
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path) -> None:
    ray.init(log_to_driver=False)
    tuner = tune.Tuner(
        trial,
        param_space={"rate": tune.grid_search(RATES), "folder": str(folder)},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name="sweep", storage_path=str(folder), failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
    results = tuner.fit()
    found = {
        "best": {"rate": results.get_best_result().config["rate"]},
        "errors": results.num_errors,
        "steps": [each.metrics["step"] for each in results],
        "nodes": len({each.metrics["node"] for each in results}),
        "killed": (folder / "killed").exists(),
    }
    (folder / "result.json").write_text(json.dumps(found))


main(Path(sys.argv[2]))
