"""Trains both examples on this machine and draws their curves: docs/figures/*.png (`make figures`, three minutes)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

FIGURES = Path(__file__).resolve().parents[1] / "docs/figures"
COMMON = {"cpu_threads": 1, "state.log_every_steps": 5, "validate_every_steps": 25}
DIGITS = {
    "task": "dtj_trainer.examples.digits:task",
    "epochs": 30,
    "global_batch_size": 64,
    "optimizer": {"lr": 0.003},
    "schedule": {"kind": "cosine", "warmup_steps": 10},
}
GPT = {
    "task": "dtj_trainer.examples.gpt:task",
    "steps": 300,
    "global_batch_size": 32,
    "clip_norm": 1.0,
    "optimizer": {"lr": 0.001, "weight_decay": 0.1, "betas": [0.9, 0.95]},
    "schedule": {"kind": "cosine", "warmup_steps": 20, "floor": 0.1},
}
Run = list[dict[str, Any]]


def records(config: dict[str, Any], **arguments: Any) -> Run:
    """Runs `dtj-train` on two ranks and returns the records of rank 0, one per logged step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.yaml")
        file.write_text(json.dumps(config | {"arguments": arguments}))
        flags = [part for name, value in COMMON.items() for part in (f"--{name}", str(value))]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launch, "-m", "dtj_trainer.cli", "--config", str(file), *flags]
        command += ["--state.checkpoint.directory", f"{folder}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, check=True, timeout=900, cwd=folder, env=environment)
        return [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]


def draw(name: str, title: str, runs: dict[str, Run]) -> None:
    """Draws training loss and validation accuracy over the steps, one curve per run."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), dpi=100)
    for label, run in runs.items():
        left.plot([r["step"] for r in run], [r["loss"] for r in run], label=label)
        # A record repeats the last validation until the next one, so take only records of steps that validated.
        measured = [r for r in run if r["step"] % 25 == 0 or r is run[-1]]
        accuracy = [r["validation_accuracy"] for r in measured]
        right.plot([r["step"] for r in measured], accuracy, marker=".", label=f"{label}: {accuracy[-1]:.3f} at the end")
    left.set(title="training loss", xlabel="step", ylim=(0, None))
    right.set(title="validation accuracy", xlabel="step", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(FIGURES / f"{name}.png")


def main() -> None:
    digits = {model: records(DIGITS, model=model) for model in ("mlp", "cnn")}
    draw("digits", "Digits of scikit-learn, 2 ranks, gloo", digits)
    draw("gpt", "Character GPT on Python's standard library, 2 ranks, gloo", {"gpt": records(GPT)})


if __name__ == "__main__":
    main()
