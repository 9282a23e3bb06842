"""What the ranks of test_gpu_ready do: what a GPU would meet first, its logic on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.optim import OptimizerConfig
from dtj_trainer.precision import PrecisionConfig
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import StrategyConfig
from dtj_trainer.trainer import Trainer
from tests.trainer.nets import WIDTH, Net
from tests.trainer.ranks import Records
from tests.trainer.work_strategies import SCRATCH, TORCH


def square_error(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def numbers(samples: int = 8) -> TensorData:
    drawn = torch.Generator().manual_seed(3)
    return TensorData(torch.randn(samples, WIDTH, generator=drawn), torch.randn(samples, 1, generator=drawn))


def config(strategy: StrategyConfig, **more: Any) -> TrainerConfig:
    return TrainerConfig(
        **({"steps": 1, "global_batch_size": 4, "optimizer": OptimizerConfig(lr=1e-2)} | more),
        strategy=strategy,
        state=StateConfig(log_every_steps=1),
    )


def head_alone(model: nn.Module) -> torch.optim.Optimizer:
    """A fine-tuning: the optimizer has the last parameters, all others have gradients too."""
    return torch.optim.SGD(list(model.parameters())[-1:], lr=0.1)


def clipped_norms(out: str) -> None:
    """The norm that clipping finds, in fp32 and in fp16, with an optimizer that has a part of the model."""
    told: dict[str, list[float]] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, strategy in (SCRATCH | TORCH).items():
            told[name] = []
            for dtype in ("fp32", "fp16"):
                torch.manual_seed(1)
                precision = PrecisionConfig(dtype=dtype, initial_scale=2.0**10)  # type: ignore[arg-type]
                trainer.config = config(strategy, clip_norm=1.0, precision=precision)
                sink = Records()
                trainer.fit(Net(), numbers(), loss=square_error, optimizer=head_alone, sinks=[sink])
                if trainer.group.rank == 0:
                    told[name].append(float(sink.records[-1]["grad_norm"]))
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(told))
