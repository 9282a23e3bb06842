"""Ranks of test_report_of_training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.state import StateConfig
from dtj_trainer.telemetry.sinks import ProfileConfig, TelemetryConfig
from dtj_trainer.trainer import Trainer

STEPS = 24
SLOW = 0.05
"""Seconds: far more than a step of this model takes, on a busy machine too."""


class Samples:
    """Random vectors; each takes its time to be read."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._seconds)
        return torch.full((16,), float(index) / 64)


def train(directory: str, cause: str) -> None:
    """Trains on two ranks, of which one is slow, or all wait for their data. Profiles all ranks."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if cause == "rank" and torch.distributed.get_rank() == 1:
            time.sleep(SLOW)
        value: torch.Tensor = model(batch).square().mean()
        return value

    folder = Path(directory)
    config = TrainerConfig(
        steps=STEPS,
        global_batch_size=4,
        cpu_threads=1,
        state=StateConfig(log_every_steps=4, checkpoint=CheckpointConfig(directory=folder, every_steps=1000)),
        telemetry=TelemetryConfig(profile=ProfileConfig(directory=folder / "traces", start=8, stop=12, ranks=[0, 1])),
    )
    with Trainer(config) as trainer:
        trainer.fit(nn.Linear(16, 4), Samples(SLOW if cause == "data" else 0.0), loss=loss)
