"""Ranks of test_tuning."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import LoaderConfig
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig, StrategyConfig
from dtj_trainer.trainer import Trainer
from dtj_trainer.tuning import probe
from tests.unit.trainer.ranks_shared import Keep

SECONDS = 0.01


class SlowData:
    """A data set whose samples come from a disk that takes its time."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SECONDS)
        return torch.full((8,), index / 4096)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 1))


def config(folder: Path | None, *, tune: bool, data: LoaderConfig, strategy: StrategyConfig) -> TrainerConfig:
    checkpoint = CheckpointConfig(directory=folder, every_steps=100)
    return TrainerConfig(
        steps=3, global_batch_size=16, tune=tune, data=data, strategy=strategy,
        state=StateConfig(log_every_steps=1, checkpoint=checkpoint),
    )  # fmt: skip


def train(trainer: Trainer, used: TrainerConfig) -> list[float]:
    """Trains the model on slow data. Returns its losses."""
    trainer.config = used
    losses: list[float] = []
    trainer.fit(model(), SlowData(), loss=lambda model, batch: model(batch).square().mean(), sinks=[Keep(losses)])
    return losses


def tuned(folder: Path, out: str) -> None:
    """Trains with tuned settings, with the same ones written into the config, and once more from the saved file."""
    logging.basicConfig(level=logging.INFO)
    probe.TIMED_SECONDS = 0.3
    first = config(folder / "a", tune=True, data=LoaderConfig(), strategy=DdpConfig())
    with Trainer(first) as trainer:
        outcome: dict[str, Any] = {"losses": train(trainer, first)}
        saved = json.loads((folder / "a" / "tuned.json").read_text())
        outcome["saved"] = saved
        found = saved["settings"]
        data = LoaderConfig(workers=found["workers"], prefetch=found["prefetch"])
        buckets = DdpConfig(bucket_cap_mb=found["bucket_cap_mb"])
        outcome["written"] = train(trainer, config(folder / "b", tune=False, data=data, strategy=buckets))
        (folder / "c").mkdir(exist_ok=True)
        (folder / "c" / "tuned.json").write_text((folder / "a" / "tuned.json").read_text())
        began = time.monotonic()
        outcome["again"] = train(trainer, config(folder / "c", tune=True, data=LoaderConfig(), strategy=DdpConfig()))
        outcome["seconds again"] = time.monotonic() - began
        fsdp = config(folder / "d", tune=True, data=LoaderConfig(), strategy=FsdpConfig())
        outcome["fsdp"] = train(trainer, fsdp)
        outcome["saved of fsdp"] = json.loads((folder / "d" / "tuned.json").read_text())
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(outcome))
