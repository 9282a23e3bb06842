"""Train both examples on this machine and draw what they wrote: docs/figures/*.png. `make figures`, about three minutes."""

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

HERE = Path(__file__).parent
DIGITS = ["--epochs", "30", "--log-every", "5"]
GPT = ["--steps", "300", "--log-every", "5"]


def records(module: str, arguments: list[str]) -> list[dict[str, Any]]:
    """What rank 0 of two wrote of each logged step."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", module]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [*launch, *arguments, "--checkpoint-dir", f"{folder}/run"]
        subprocess.run(command, check=True, timeout=900, cwd=folder, env=environment)
        return [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]


def draw(name: str, title: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    """One curve of the training loss a run; the validation at the end in its legend."""
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
    for label, run in runs.items():
        steps = [r for r in run if r.get("loss") is not None]
        accuracy = run[-1]["validation_accuracy"]
        axes.plot([r["step"] for r in steps], [r["loss"] for r in steps], label=f"{label}: validation accuracy {accuracy:.3f}")
    axes.set(title=title, xlabel="step", ylabel="training loss", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.png")


def main() -> None:
    digits = "dtj_trainer.examples.digits"
    runs = {model: records(digits, [*DIGITS, "--model", model]) for model in ("mlp", "cnn")}
    draw("digits", "Digits of scikit-learn, 2 ranks, gloo", runs)
    draw("gpt", "Character GPT on Python's standard library, 2 ranks, gloo", {"gpt": records("dtj_trainer.examples.gpt", GPT)})


if __name__ == "__main__":
    main()
