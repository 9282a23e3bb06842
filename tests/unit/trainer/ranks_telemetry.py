"""Ranks of test_telemetry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.state import StateConfig
from dtj_trainer.telemetry.sinks import ProfileConfig, TelemetryConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks import Records

BATCH = 8
# Seconds. A step of a few milliseconds may take a third of it on a busy machine.
SLOW = 2.0


def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return model(batch[0]).square().mean()


def half(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Mapping[str, torch.Tensor]:
    """Measures a constant."""
    return {"half": torch.tensor(0.5)}


def fit(
    steps: int,
    directory: Path | None,
    *,
    measure: Any = None,
    on_start: Any = None,
    after_step: Callable[[Trainer, int], None] | None = None,
    every: int = 3,
    telemetry: TelemetryConfig | None = None,
    **options: Any,
) -> list[Mapping[str, Any]]:
    """Trains a linear model. Returns rank 0's records."""
    torch.manual_seed(0)
    checkpoint = CheckpointConfig(directory=directory, every_steps=1000)
    config = TrainerConfig(
        steps=steps,
        global_batch_size=BATCH,
        validate_every_steps=every if measure else None,
        state=StateConfig(log_every_steps=every, checkpoint=checkpoint),
        telemetry=telemetry or TelemetryConfig(),
    )
    sink = Records()
    data = TensorData(torch.randn(64, 4))
    with Trainer(config) as trainer:
        trainer.on_start = on_start
        trainer.fit(
            nn.Linear(4, 2),
            data,
            loss=loss,
            validation=TensorData(torch.randn(BATCH, 4)) if measure else None,  # one batch
            measure=measure,
            sinks=[sink],
            after_step=(lambda step: after_step(trainer, step)) if after_step else None,
            **options,
        )
    return sink.records


def windows(directory: str, out: str) -> None:
    """Trains six steps, then six more from their checkpoint; start and validations are slow."""

    def slow(*_: Any) -> Mapping[str, torch.Tensor]:
        time.sleep(SLOW)
        return {"half": torch.tensor(0.5)}

    outcome = [fit(steps, Path(directory), measure=slow, on_start=lambda _: time.sleep(SLOW)) for steps in (6, 12)]
    Path(out).write_text(json.dumps(outcome))


def profiled(directory: str, traces: str, steps: int) -> None:
    """Profiles steps 2 to 4 on rank 1 alone."""
    profile = ProfileConfig(directory=Path(traces), start=2, stop=5, ranks=[1])
    fit(steps, Path(directory), telemetry=TelemetryConfig(profile=profile))


def tracked(uri: str, enough: str) -> None:
    """Records every step to an MLflow server, until the file `enough` exists."""

    def after_step(trainer: Trainer, step: int) -> None:
        time.sleep(0.01)
        if Path(enough).exists():
            trainer.state.end()

    fit(100_000, None, every=1, after_step=after_step, telemetry=TelemetryConfig(mlflow=uri))


def endless() -> None:
    """Trains and reports every step, with a measure, until it is stopped."""
    options = {"tokens_per_sample": 10, "flops_per_sample": 1e6}
    fit(10**9, None, every=1, measure=half, telemetry=TelemetryConfig(peak_flops=1e12), **options)


if __name__ == "__main__":
    endless()
