"""Functions for the ranks of test_noise_scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, StrategyConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks import Records

WIDTH, SAMPLES, BATCH = 20, 4000, 40
STRATEGIES: dict[str, StrategyConfig] = {"ddp": DdpConfig(), "ddp_scratch": DdpScratchConfig(bucket_cap_mb=0.0001)}


class Mean(nn.Module):
    """Its gradient is the mean of the batch: samples of a known mean and variance."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.zeros(WIDTH // 2)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ torch.cat([self.one, self.two])).mean()


def samples() -> torch.Tensor:
    """Returns samples of mean 0.1 and variance 1 in each of 20 directions: a scale of 100."""
    return 0.1 + torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0])  # type: ignore[no-any-return]


def measure(out: str) -> None:
    """Reports the scale with each strategy and in each way of sending; rank 0 writes what was reported."""
    trainer = Trainer(TrainerConfig(steps=1))
    results = {}
    for name, strategy in STRATEGIES.items():
        for method, micro in (("none", None), ("bf16", 5)):
            records = Records()
            trainer.config = TrainerConfig(
                steps=100, global_batch_size=BATCH, micro_batch_size=micro, strategy=strategy,
                optimizer=OptimizerConfig(name="sgd", lr=1e-6, momentum=0.0, weight_decay=0.0),
                communication=CommunicationConfig(method=method, noise_scale=True),  # type: ignore[arg-type]
                state=StateConfig(log_every_steps=1),
            )  # fmt: skip
            trainer.fit(Mean(), TensorData(samples()), loss=loss, sinks=[records])
            results[f"{name} {method}"] = [record.get("gradient_noise_scale") for record in records.records]
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(results))
    trainer.close()
