"""The workloads: a small GPT, whose steps are many small operations, and an MLP, whose steps mostly send gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dtj_trainer.data.source import TensorData
from dtj_trainer.data.text import VOCABULARY
from dtj_trainer.examples import gpt
from dtj_trainer.task import Loss
from dtj_trainer.trainer import Trainer

LR = 1e-3
LOG_EVERY = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model, its data in order, and the number of timed steps."""

    model: Callable[[], nn.Module]
    data: Callable[[], TensorData]
    loss: Loss
    batch: int
    """Samples per step over all ranks."""
    steps: int
    """Timed steps."""
    warmup: int = 3

    @property
    def total(self) -> int:
        """All steps of a run, warm-up included."""
        return self.warmup + self.steps


def _gpt() -> nn.Module:
    torch.manual_seed(0)
    return gpt.Gpt(gpt.GptConfig(block=64, layers=4, heads=4, width=128))


@cache
def _tokens() -> TensorData:
    drawn = torch.randint(0, VOCABULARY, (512, 65), generator=torch.Generator().manual_seed(0))
    return TensorData(drawn[:, :-1], drawn[:, 1:])


@cache
def _vectors(width: int) -> TensorData:
    drawn = torch.randn(512, 2, width, generator=torch.Generator().manual_seed(0))
    return TensorData(drawn[:, 0].contiguous(), drawn[:, 1].contiguous())


def _square_error(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def mlp(width: int, steps: int) -> Workload:
    """Returns an MLP of four layers with few samples per step."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))

    return Workload(model=model, data=lambda: _vectors(width), loss=_square_error, batch=16, steps=steps)


GPT = Workload(model=_gpt, data=_tokens, loss=gpt.loss, batch=8, steps=40)
"""0.8 M parameters: a step takes some tens of milliseconds on one core, so that the overhead of a library shows."""
MLP_WIDTH = 1774
MLP = mlp(MLP_WIDTH, steps=12)
"""12.6 M parameters: a step sends 50 MB of gradients, so that bucketing and overlap show."""


class Run:
    """One turn of one arm: the model, the clock, and the losses that prove that the arm did the work."""

    def __init__(self, workload: Workload, trainer: Trainer) -> None:
        self.workload, self.trainer = workload, trainer
        self.model, self.data = workload.model(), workload.data()
        self.optimizer: Optimizer | None = None
        """The optimizer, which the arm sets."""
        self.milliseconds = 0.0
        """Time of a step, from the end of the warm-up to the last step."""
        self._losses: list[torch.Tensor] = []
        self._started = 0.0

    @property
    def mine(self) -> int:
        """Samples per step on this rank."""
        return self.workload.batch // self.trainer.group.world_size

    def batch(self, step: int) -> tuple[torch.Tensor, ...]:
        """Returns this rank's share of a step's samples, which are taken in order."""
        start = step * self.workload.batch + self.trainer.group.rank * self.mine
        return self.data.get_batch(range(start, start + self.mine))

    def loader(self) -> DataLoader[Any]:
        """Returns the same batches as a DataLoader for libraries that need one, whole, which is least work."""
        return DataLoader(_Batches(self), batch_size=None)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Computes the workload's loss and keeps its value for `losses`."""
        value = self.workload.loss(model, batch)
        self._losses.append(value.detach())
        return value

    def after_step(self, step: int) -> None:
        """Keeps the time; arms call it after each step, counted from 0."""
        if step + 1 == self.workload.warmup:
            self._started = time.perf_counter()
        if step + 1 == self.workload.total:
            self.milliseconds = (time.perf_counter() - self._started) / self.workload.steps * 1000

    def losses(self) -> torch.Tensor:
        """Returns the mean loss of each step over all ranks; a collective."""
        return self.trainer.group.gather(torch.stack(self._losses).double()).mean(0)


class _Batches(Dataset[Any]):
    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.workload.total

    def __getitem__(self, step: int) -> Any:
        return self._run.batch(step)


def same_losses(arm: str, got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Raises RuntimeError at the first step with another loss, because such an arm does not do the same work."""
    if got.shape != wanted.shape:
        raise RuntimeError(f"{arm} did {len(got)} steps and the bare loop {len(wanted)}")
    for step, (a, b) in enumerate(zip(got.tolist(), wanted.tolist(), strict=True)):
        if not abs(a - b) <= tolerance * max(1.0, abs(b)):
            raise RuntimeError(
                f"{arm} has loss {a!r} in step {step} and the bare loop {b!r}: they don't do the same work"
            )
