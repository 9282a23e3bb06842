"""Functions for the ranks of test_gpu_ready: logic for GPUs, run on a CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.cli import guarded
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig, FsdpScratchConfig, HsdpConfig, StrategyConfig, name_of
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup
from dtj_trainer.strategies.scratch.fsdp_model import ScratchFsdpModel
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import WIDTH, Net
from tests.unit.trainer.ranks import Records
from tests.unit.trainer.ranks_strategies import SCRATCH, TORCH


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
    """Returns the optimizer of a fine-tuning: it has the last parameters, but all others have gradients too."""
    return torch.optim.SGD(list(model.parameters())[-1:], lr=0.1)


def clipped_norms(out: str) -> None:
    """Writes the norm that clipping finds, in fp32 and in fp16, with an optimizer that has some of the parameters."""
    results: dict[str, list[float]] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, strategy in (SCRATCH | TORCH).items():
            results[name] = []
            for dtype in ("fp32", "fp16"):
                torch.manual_seed(1)
                precision = PrecisionConfig(dtype=dtype, initial_scale=2.0**10)  # type: ignore[arg-type]
                trainer.config = config(strategy, clip_norm=1.0, precision=precision)
                sink = Records()
                trainer.fit(Net(), numbers(), loss=square_error, optimizer=head_alone, sinks=[sink])
                if trainer.group.rank == 0:
                    results[name].append(float(sink.records[-1]["grad_norm"]))
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))


def runs_out(at: int) -> None:
    """Runs a step that raises torch's out-of-memory error."""
    steps = 0

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == at + 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return square_error(model, batch)

    def fit() -> int:
        with Trainer(config(DdpConfig(), steps=6)) as trainer:
            trainer.fit(Net(), numbers(), loss=loss)
        return 0

    sys.exit(guarded(fit))


def reduced(out: str) -> None:
    """Trains two micro-batches a step, reduced once or each.

    Writes losses; of fsdp_scratch also whole gradients and sends.
    """
    results: dict[str, Any] = {}
    sends = 0
    real = FlatParamGroup.scatter

    def counted(self: FlatParamGroup) -> None:
        nonlocal sends
        sends += self.gradient is not None and self._scattering is None
        real(self)

    FlatParamGroup.scatter = counted  # type: ignore[method-assign]
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, each in (("once", False), ("each", True)):
            for kind in (FsdpConfig, HsdpConfig, FsdpScratchConfig):
                sends, whole, calls = 0, 0, 0

                def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
                    nonlocal whole, calls
                    calls += 1
                    if calls == 2 and isinstance(model, ScratchFsdpModel):  # between the first step's micro-batches
                        whole = sum(g.gradient is not None and g._scattering is None for g in model.flat_groups)
                    return square_error(model, batch)

                torch.manual_seed(1)
                trainer.config = config(kind(reduce_every_micro_batch=each), steps=3, micro_batch_size=1)
                sink = Records()
                trainer.fit(Net(), numbers(16), loss=loss, sinks=[sink])
                results[f"{name_of(trainer.config.strategy)} {name}"] = [
                    [float(r["loss"]) for r in sink.records],
                    whole,
                    sends,
                ]
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))
