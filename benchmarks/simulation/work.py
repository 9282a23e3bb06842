"""The functions of a rank: its profile, the link, and real steps of a model whose computation is a pause.

Ranks that share a core would measure the core. A pause stands in for an accelerator that each rank has for itself.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

from benchmarks.simulation.sizes import BACKWARD, BUCKET_MB, FORWARD, LAYERS, SAMPLES, SETTLING, STEPS, WIDTH
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.measure.link import measure_link
from dtj_trainer.measure.rank_profile import measure_rank
from dtj_trainer.strategies import DdpConfig
from dtj_trainer.task import Task
from dtj_trainer.trainer import Trainer


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(BACKWARD)
        return gradients[0]


class Layer(nn.Module):
    """A matrix and a pause, which in the backward comes before the matrix has its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns as many numbers as it is given."""
        paused: torch.Tensor = _Pause.apply(self.matrix(x))  # type: ignore[no-untyped-call]
        return paused


class Samples:
    """Vectors of ones."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(WIDTH)


def task() -> Task:
    """Returns the model that pauses, and its data."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    return Task(model=model, data=Samples(), loss=lambda model, batch: model(batch).square().mean())


def config(world: int) -> TrainerConfig:
    """Returns the config of a run in which each rank has the same samples whatever the world."""
    return TrainerConfig(
        steps=SETTLING + STEPS,
        global_batch_size=SAMPLES * world,
        optimizer=OptimizerConfig(name="sgd", lr=1e-4),
        strategy=DdpConfig(bucket_cap_mb=BUCKET_MB),
    )


def profile() -> dict[str, Any]:
    """Returns the profile of one rank, which is alone."""
    return measure_rank(task(), config(1), steps=STEPS).document()


def link(trials: int) -> dict[str, Any]:
    """Returns the latency and the bandwidth between the ranks."""
    group = Group.open(WorkerEnv.read())
    try:
        return measure_link(group, trials=trials).document()
    finally:
        group.close()


def steps() -> float:
    """Returns the median seconds of a real step."""
    ends: list[float] = []
    env = WorkerEnv.read()
    with Trainer(config(env.world_size), env) as trainer:
        trainer.fit(**task().arguments(), after_step=lambda _: ends.append(time.perf_counter()))
    return statistics.median(end - begin for begin, end in zip(ends[SETTLING - 1 :], ends[SETTLING:], strict=False))
