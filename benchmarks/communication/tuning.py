"""The steps of two runs as they are configured, and with what `tune: true` has found for them."""

from __future__ import annotations

import logging
import statistics
import time

import torch

from benchmarks.communication import buckets
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.strategies import DdpScratchConfig
from dtj_trainer.task import Task
from dtj_trainer.trainer import Trainer

SETTLING, STEPS = 5, 15
"""Steps before those that are timed, and those of a trial."""
SAMPLES = 8
"""Of a rank in a step."""
READ_SECONDS = 0.005
"""Of a sample that comes from a disk or from a network."""
BUCKETS, LOADER = "200 small matrices", "samples that take 5 ms to read"


class Samples:
    """Vectors of ones, each of which takes some seconds to read."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._seconds:
            time.sleep(self._seconds)
        return torch.ones(buckets.WIDTH)


AS_CONFIGURED, TUNED = "as configured", "tuned"
WORKLOADS = {BUCKETS: 0.0, LOADER: READ_SECONDS}
"""The seconds of a sample in each workload. Both train the model of the table of buckets."""


def step_ms(trainer: Trainer, seconds: float, tune: bool) -> float:
    """Trains a fresh model, with `tune` after its search. Returns the median milliseconds of a step."""
    ends: list[float] = []
    world = trainer.env.world_size
    trainer.config = TrainerConfig(
        steps=SETTLING + STEPS,
        global_batch_size=SAMPLES * world,
        optimizer=OptimizerConfig(name="sgd", lr=1e-4),
        strategy=DdpScratchConfig(),
        tune=tune,
    )
    task = Task(model=buckets.net(), data=Samples(seconds), loss=lambda model, batch: model(batch).square().mean())
    trainer.fit(**task.arguments(), after_step=lambda _: ends.append(time.perf_counter()))
    return 1000 * statistics.median(e - b for b, e in zip(ends[SETTLING - 1 :], ends[SETTLING:], strict=False))


def measure(trials: int) -> dict[str, list[float]]:
    """Returns the milliseconds of a step by workload and kind of run, one per trial. Each trial searches again."""
    logging.disable(logging.INFO)
    rows: dict[str, list[float]] = {f"{name}, {kind}": [] for name in WORKLOADS for kind in (AS_CONFIGURED, TUNED)}
    with Trainer(TrainerConfig(steps=1), WorkerEnv.read()) as trainer:
        for _ in range(trials):
            for name, seconds in WORKLOADS.items():
                for tune, kind in enumerate((AS_CONFIGURED, TUNED)):
                    rows[f"{name}, {kind}"].append(step_ms(trainer, seconds, bool(tune)))
    return rows
