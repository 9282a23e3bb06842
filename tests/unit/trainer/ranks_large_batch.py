"""Functions for the ranks of test_large_batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import Keep, tiny_gpt, tokens

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "lamb": {"name": "lamb", "lr": 0.02},
    "lars": {"name": "lars", "lr": 1.0, "trust": 0.02},
}


def strategies(folder: str) -> None:
    """Trains with each optimizer under ddp and fsdp, and resumes under fsdp. Rank 0 writes the losses."""
    trainer = Trainer(TrainerConfig(steps=1))
    results = {}
    for name, options in OPTIMIZERS.items():
        saved = Path(folder) / name
        runs: dict[str, Any] = {
            "ddp": (DdpConfig(), 6, None), "fsdp": (FsdpConfig(), 6, None),
            "half": (FsdpConfig(), 3, saved), "resumed": (FsdpConfig(), 6, saved),
        }  # fmt: skip
        for run, (strategy, steps, directory) in runs.items():
            losses: list[float] = []
            checkpoint = CheckpointConfig(directory=directory) if directory else CheckpointConfig()
            trainer.config = TrainerConfig(
                steps=steps, global_batch_size=12, optimizer=OptimizerConfig(**options), strategy=strategy,
                state=StateConfig(log_every_steps=1, checkpoint=checkpoint),
            )  # fmt: skip
            trainer.fit(tiny_gpt(), tokens(), loss=gpt.loss, sinks=[Keep(losses)])
            results[f"{name} {run}"] = losses
    if trainer.group.rank == 0:
        (Path(folder) / "out.json").write_text(json.dumps(results))
    trainer.close()
