"""Ranks of test_options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from dtj_trainer import cli
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig, StrategyConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import Keep, tiny_gpt, tokens


def run(
    trainer: Trainer,
    directory: Path,
    steps: int,
    *,
    strategy: StrategyConfig | None = None,
    decay: float = 0.5,
    own: Callable[[nn.Module], Optimizer] | None = None,
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
) -> list[float]:
    """Trains a tiny GPT from the newest checkpoint, if any, to `steps`. Returns the losses."""
    trainer.config = TrainerConfig(
        steps=steps, global_batch_size=12, strategy=strategy or DdpConfig(),
        optimizer=OptimizerConfig(lr=1e-2, weight_decay=decay, decay_vectors=False),
        state=StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=directory, every_steps=100)),
        precision=PrecisionConfig(dtype=dtype, initial_scale=2.0**10, growth_interval=2),
    )  # fmt: skip
    losses: list[float] = []
    trainer.fit(tiny_gpt(), tokens(), loss=gpt.loss, optimizer=own, sinks=[Keep(losses)])
    return losses


def optimizers(folder: Path) -> None:
    """Saves an optimizer of two groups by one strategy, loads it by another, and tries an own one."""
    with Trainer(TrainerConfig(steps=1, deterministic=True)) as trainer:
        outcome: dict[str, Any] = {"whole": run(trainer, folder / "whole", 4)}
        groups = trainer.state.objects["optimizer"].param_groups  # type: ignore[attr-defined]
        outcome |= {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "groups": [[g["weight_decay"], sorted({p.dim() for p in g["params"]})] for g in groups],
            "parts": run(trainer, folder / "parts", 2) + run(trainer, folder / "parts", 4, strategy=FsdpConfig()),
            "undecayed": run(trainer, folder / "undecayed", 4, decay=0.0),
            "own": run(trainer, folder / "own", 4, own=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2)),
        }
        if trainer.group.rank == 0:
            (folder / "out.json").write_text(json.dumps(outcome))


def half(folder: Path, dtype: Literal["bf16", "fp16"]) -> None:
    """Trains four steps, without and with an interruption."""
    with Trainer(TrainerConfig(steps=1)) as trainer:
        outcome: dict[str, Any] = {}
        for name, until in (("whole", [4]), ("parts", [3, 4])):
            losses = [loss for steps in until for loss in run(trainer, folder / name, steps, dtype=dtype)]
            outcome[name] = [losses, trainer.state.objects["precision"].loss_scale]  # type: ignore[attr-defined]
        if trainer.group.rank == 0:
            (folder / "out.json").write_text(json.dumps(outcome))


def different_arguments(file: str) -> None:
    """Starts rank 1 with another model, which is in no field of the config."""
    raise SystemExit(cli.main(["--config", file, "--arguments.model", "mlp" if os.environ["RANK"] == "0" else "cnn"]))
