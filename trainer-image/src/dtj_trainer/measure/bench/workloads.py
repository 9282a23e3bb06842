"""The models of a bench, their data in a fixed order, and the clock of one turn."""

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

from dtj_trainer.data.nested import to_device
from dtj_trainer.data.source import TensorData
from dtj_trainer.data.text import VOCABULARY
from dtj_trainer.errors import ConfigError
from dtj_trainer.examples import classify, gpt, images, resnet
from dtj_trainer.measure.bench.probe import Probe
from dtj_trainer.task import Loss
from dtj_trainer.trainer import Trainer

LR = 1e-3
LOG_EVERY = 10
"""Steps between two losses that an arm logs, where it logs."""
SAMPLES = 512
"""Of a data set; a longer run begins again at the first one."""


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
    log_every: int = LOG_EVERY

    @property
    def total(self) -> int:
        """All steps of a run, warm-up included."""
        return self.warmup + self.steps


@cache
def _tokens(block: int) -> TensorData:
    drawn = torch.randint(0, VOCABULARY, (SAMPLES, block + 1), generator=torch.Generator().manual_seed(0))
    return TensorData(drawn[:, :-1], drawn[:, 1:])


@cache
def _vectors(width: int) -> TensorData:
    drawn = torch.randn(SAMPLES, 2, width, generator=torch.Generator().manual_seed(0))
    return TensorData(drawn[:, 0].contiguous(), drawn[:, 1].contiguous())


@cache
def _gratings(pixels: int) -> TensorData:
    return TensorData(*images.Gratings(SAMPLES, pixels=pixels).get_batch(range(SAMPLES)))


def _square_error(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def mlp(width: int, steps: int, *, layers: int = 4, batch: int = 16, warmup: int = 3) -> Workload:
    """Returns an MLP, whose steps mostly send gradients when there are few samples."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    return Workload(
        model=model, data=lambda: _vectors(width), loss=_square_error, batch=batch, steps=steps, warmup=warmup
    )


def small_gpt(
    steps: int, *, block: int = 64, layers: int = 4, heads: int = 4, width: int = 128, batch: int = 8, warmup: int = 3
) -> Workload:
    """Returns a GPT, whose steps are many small operations. The sizes are those of 0.8 M parameters."""
    config = gpt.GptConfig(block=block, layers=layers, heads=heads, width=width)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return gpt.Gpt(config)

    return Workload(model=model, data=lambda: _tokens(block), loss=gpt.loss, batch=batch, steps=steps, warmup=warmup)


def small_resnet(
    steps: int, *, depth: int = 18, width: int = 16, pixels: int = 32, batch: int = 16, warmup: int = 3
) -> Workload:
    """Returns a ResNet with BatchNorm, whose steps mostly compute. The sizes are those of 0.7 M parameters."""
    config = resnet.ResNetConfig(depth=depth, width=width, pixels=pixels)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return resnet.ResNet(config)

    return Workload(
        model=model, data=lambda: _gratings(pixels), loss=classify.loss, batch=batch, steps=steps, warmup=warmup
    )


SIZES: dict[str, dict[str, int]] = {
    "mlp": {"width": 512, "layers": 4},
    "gpt": {"block": 64, "layers": 4, "heads": 4, "width": 128},
    "resnet": {"depth": 18, "width": 16, "pixels": 32},
}
"""The models by name, and the sizes that each has by default."""


def named(name: str, sizes: dict[str, int], *, batch: int, steps: int, warmup: int) -> Workload:
    """Returns a workload by its model's name. Raises ConfigError that names what to write instead.

    Args:
        name: A key of SIZES.
        sizes: Those that differ from the default.
        batch: Samples per step over all ranks.
        steps: Timed steps.
        warmup: Steps before those.
    """
    if name not in SIZES:
        raise ConfigError(f"--model {name}: write {', '.join(SIZES)}")
    for size, value in sizes.items():
        if size not in SIZES[name]:
            raise ConfigError(f"--model {name}: there is no size {size}; write {', '.join(SIZES[name])}")
        if value < 1:
            raise ConfigError(f"--model {name}:{size}={value}: write 1 or more")
    chosen = SIZES[name] | sizes
    counts = {"batch": batch, "steps": steps, "warmup": warmup}
    match name:
        case "mlp":
            return mlp(**chosen, **counts)
        case "gpt":
            return small_gpt(**chosen, **counts)
    return small_resnet(**chosen, **counts)


class Run:
    """One turn of one arm: the model, the clock, and the losses that prove that the arm did the work."""

    def __init__(self, workload: Workload, trainer: Trainer, probe: Probe | None = None) -> None:
        """Builds model and data.

        Args:
            workload: What is trained.
            trainer: Whose group the arm trains in.
            probe: Measures the collectives; None: nothing is added to the arm's step.
        """
        self.workload, self.trainer, self.probe = workload, trainer, probe
        self.model, self.data = workload.model().to(trainer.group.device), workload.data()
        self.optimizer: Optimizer | None = None
        """The optimizer, which the arm sets."""
        self.ends: list[float] = []
        """When each step ended, in seconds of this rank's clock."""
        self._losses: list[torch.Tensor] = []

    @property
    def milliseconds(self) -> float:
        """Time of a step, from the end of the warm-up to the last step."""
        workload = self.workload
        return (self.ends[workload.total - 1] - self.ends[workload.warmup - 1]) / workload.steps * 1000

    @property
    def mine(self) -> int:
        """Samples per step on this rank."""
        return self.workload.batch // self.trainer.group.world_size

    def batch(self, step: int) -> Any:
        """Returns this rank's share of a step's samples, which are taken in order."""
        start = step * self.workload.batch + self.trainer.group.rank * self.mine
        samples = self.data.get_batch([at % len(self.data) for at in range(start, start + self.mine)])
        return to_device(samples, self.trainer.group.device)

    def loader(self) -> DataLoader[Any]:
        """Returns the same batches as a DataLoader for libraries that need one, whole, which is least work."""
        return DataLoader(_Batches(self), batch_size=None)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Computes the workload's loss and keeps its value for `losses`."""
        value = self.workload.loss(model, batch)
        self._losses.append(value.detach())
        return value

    def wrapped(self, model: nn.Module) -> None:
        """Gives the probe the model that a strategy has wrapped; an arm calls it before its first step."""
        if self.probe is not None:
            self.probe.attach(model)

    def after_step(self, step: int) -> None:
        """Keeps the time; arms call it after each step, counted from 0.

        With a probe, a GPU has done the step by then: its end is waited for.
        """
        if self.probe is not None:
            if self.trainer.group.device.type == "cuda":
                torch.cuda.synchronize()
            self.probe.step_done()
            if step + 1 == self.workload.warmup:
                self.probe.begin()
        self.ends.append(time.perf_counter())

    def losses(self) -> torch.Tensor:
        """Returns the mean loss of each step over all ranks; a collective."""
        return self.trainer.group.gather(torch.stack(self._losses).double().cpu()).mean(0)


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
