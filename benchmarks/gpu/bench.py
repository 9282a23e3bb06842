"""The measured model, and one training of it through the Trainer or by a bare loop."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from dtj_trainer.components.activation_checkpoint import Recompute
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.examples import gpt
from dtj_trainer.trainer import Trainer

Dtype = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The amount of work to measure."""

    gpt: gpt.GptConfig
    micro_batch: int
    """Sequences per step."""
    steps: int
    """Timed steps in one turn of an arm."""
    warmup: int
    largest: int
    """Sequences at which the search for the largest micro-batch stops."""
    compiler: str
    """torch.compile's backend."""


BILLION = Size(
    gpt=gpt.GptConfig(vocabulary=50304, block=2048, layers=18, heads=16, width=2048),
    micro_batch=8,
    steps=5,
    warmup=2,
    largest=256,
    compiler="inductor",
)
"""1.01 billion parameters, heads of 128: 16 GB of weights, gradients and AdamW, for a device of 80 GB."""
TOY = Size(
    gpt=gpt.GptConfig(vocabulary=256, block=128, layers=2, heads=2, width=128),
    micro_batch=4,
    steps=2,
    warmup=1,
    largest=3,
    compiler="eager",
)
"""Runs on a CPU in seconds and shows only that the commands work."""


@dataclass(kw_only=True, slots=True)
class Turn:
    """The measurements of one training."""

    milliseconds: float = 0.0
    """Time of a step after the warm-up."""
    batches: list[int] = field(default_factory=list)
    """Sequences of each pass through the model."""


class GpuBench:
    """One rank on the GPU, or on the CPU where there is none."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.trainer = Trainer(TrainerConfig(steps=1))
        self.device = self.trainer.group.device

    def model(self) -> gpt.Gpt:
        """Creates the model on the device; a billion random numbers on the CPU would take longer than a trial."""
        torch.manual_seed(0)
        with self.device:
            return gpt.Gpt(self.size.gpt)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Creates the optimizer with the Trainer's settings."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    def data(self, sequences: int) -> TensorData:
        """Returns random tokens in host memory."""
        shape = (sequences, self.size.gpt.block + 1)
        drawn = torch.randint(0, self.size.gpt.vocabulary, shape, generator=torch.Generator().manual_seed(0))
        return TensorData(drawn[:, :-1], drawn[:, 1:])

    def synchronize(self) -> None:
        """Waits until the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def clock(self, turn: Turn) -> Callable[[int], None]:
        """Returns a function to call after each step, counted from 0, which fills in `turn.milliseconds`."""
        started = 0.0

        def after_step(step: int) -> None:
            nonlocal started
            if step + 1 in (self.size.warmup, self.size.warmup + self.size.steps):
                self.synchronize()
            if step + 1 == self.size.warmup:
                started = time.perf_counter()
            if step + 1 == self.size.warmup + self.size.steps:
                turn.milliseconds = (time.perf_counter() - started) / self.size.steps * 1000

        return after_step

    def bare(self, model: nn.Module) -> Turn:
        """Trains in bf16 with a plain torch loop."""
        turn = Turn()
        after_step = self.clock(turn)
        optimizer, data, batch = self.optimizer(model), self.data(self._sequences()), self.size.micro_batch
        for step in range(self.size.warmup + self.size.steps):
            tokens, targets = (t.to(self.device) for t in data.get_batch(range(step * batch, (step + 1) * batch)))
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = gpt.loss(model, (tokens, targets))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            after_step(step)
        return turn

    def train(
        self,
        model: nn.Module,
        dtype: Dtype = "bf16",
        *,
        recompute: Recompute = "none",
        batch: int | None = None,
        micro: int | Literal["auto"] | None = None,
        steps: int | None = None,
    ) -> Turn:
        """Trains with the Trainer. Raises torch.OutOfMemoryError and keeps no reference to the run in that case."""
        trainer, turn = self.trainer, Turn()
        batch = batch or self.size.micro_batch
        steps = steps or self.size.warmup + self.size.steps
        trainer.config = TrainerConfig(
            steps=steps,
            global_batch_size=batch,
            micro_batch_size=micro,
            shuffle=False,
            precision=PrecisionConfig(dtype=dtype),
            recompute=recompute,
        )
        # The attempts of `auto` are no steps.
        trainer.on_start = lambda _: turn.batches.clear()

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            turn.batches.append(len(batch[0]))
            return gpt.loss(model, batch)

        try:
            # Only the tables go to stdout.
            with contextlib.redirect_stdout(sys.stderr):
                trainer.fit(model, self.data(batch * steps), loss=loss, after_step=self.clock(turn))
        finally:
            vars(trainer).pop("state", None)  # the state holds model and optimizer
        return turn

    def _sequences(self) -> int:
        return self.size.micro_batch * (self.size.warmup + self.size.steps)
