"""One training run: the objects that it is made of, and the steps of its loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dtj_trainer.communication import GradientQueue
from dtj_trainer.components.batch_size import is_out_of_memory, out_of_memory
from dtj_trainer.components.early_stopping import EarlyStop
from dtj_trainer.components.ema import Ema
from dtj_trainer.components.noise_scale import NoiseScale
from dtj_trainer.components.precision import Precision
from dtj_trainer.components.validation import Measure, evaluate
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import BatchPartition, StreamData, StreamOrder, batches
from dtj_trainer.data.nested import to_device
from dtj_trainer.data.order import DataOrder
from dtj_trainer.distributed.buffer_broadcast import broadcast_buffers
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.state import State
from dtj_trainer.strategies import DeepSpeed, LocalSgd, Strategy
from dtj_trainer.strategies.deepspeed import EngineSchedule
from dtj_trainer.task import Data, Loss
from dtj_trainer.telemetry.meter import Meter
from dtj_trainer.telemetry.own_time import OwnTime
from dtj_trainer.telemetry.profiler import ProfilerWindow

OPTIONAL_METRICS = {
    "grad_norm", "evaluation_seconds", "communication_seconds", "communication_share", "exposed_seconds", "overlap",
    "gpu_utilization", "gpu_memory_bytes",
}  # fmt: skip
"""Metrics that a step may lack, because its gradients overflowed or nothing was measured."""
MicroBatches = list[tuple[Any, int]]
"""This rank's share of a step: batches, each with its number of samples that count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Holds everything that one `Trainer.fit` trains with; `prepare` makes it."""

    config: TrainerConfig
    group: Group
    state: State
    total_steps: int
    model: nn.Module
    """The model as the strategy has wrapped it."""
    strategy: Strategy[Any]
    loss: Loss
    optimizer: Optimizer
    scheduler: LRScheduler | EngineSchedule
    precision: Precision
    ema: Ema | None
    early_stop: EarlyStop | None
    data: Data | StreamData
    order: DataOrder | StreamOrder
    micro_batch_size: int | None
    validation: Data | None
    measure: Measure | None
    meter: Meter
    own_time: OwnTime
    noise: NoiseScale | None
    profiler: ProfilerWindow

    @property
    def partition(self) -> BatchPartition:
        """How this rank's share is cut, once the order has loaded the first world's size."""
        return BatchPartition(
            global_batch_size=self.order.size,
            rank=self.group.rank,
            world_size=self.group.world_size,
            micro_batch_size=self.micro_batch_size or self.order.first_share,
        )

    def steps(self) -> Iterator[tuple[int, MicroBatches]]:
        """Yields the number of each step still to do, and its data.

        `State.steps` resumes, saves, and stops on SIGTERM.
        """
        ready: Iterator[MicroBatches] | None = None
        for step in self.state.steps(self.total_steps):
            # Only now has the order loaded its position from the checkpoint.
            if ready is None:
                ready = batches(self.data, self.order, self.partition, self.config.data, seed=self.config.seed)
                self.meter.begin()
            self.profiler.before(step)
            began = time.perf_counter()
            with self.meter.section("data"):
                micro_batches = next(ready)
            self.own_time.add(time.perf_counter() - began)
            yield step, micro_batches
        self.profiler.close(self.state.step)

    def train_step(
        self, step: int, micro_batches: MicroBatches
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | float]]:
        """Takes one optimizer step.

        Returns (this rank's share of the mean loss, metrics of the step).
        """
        metrics: dict[str, torch.Tensor | float] = {"epoch": self.order.epoch, "lr": self.scheduler.get_last_lr()[0]}
        with self.meter.section("compute"):
            with _named_out_of_memory(step, fixed_size=self.config.micro_batch_size != "auto"):
                local_loss = self.forward_backward(micro_batches)
            if isinstance(self.strategy, DeepSpeed):
                metrics |= self.strategy.step(self.model)
            elif self.precision.unscale(self.model, self.optimizer):
                if self.noise is not None and self.state.will_log:
                    metrics |= self._noise_scale()
                if self.config.clip_norm:
                    metrics["grad_norm"] = self.strategy.clip(self.model, self.config.clip_norm)
                self.optimizer.step()
                if isinstance(self.strategy, LocalSgd):
                    self.strategy.step_done(self.optimizer)
                if self.ema:
                    self.ema.update()
            self.strategy.zero_grad(self.model, self.optimizer)
        self.order.advance()
        self.scheduler.step()
        self.meter.step_done()
        self.state.own_seconds = self.own_time.step_done()
        return local_loss, metrics

    def _noise_scale(self) -> dict[str, float]:
        queue: GradientQueue = self.strategy.queue  # type: ignore[attr-defined]
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        assert self.noise is not None
        scale = self.noise.update(queue.own_square, norm, self.order.size)
        return {} if scale is None else {"gradient_noise_scale": scale}

    def forward_backward(self, micro_batches: MicroBatches) -> torch.Tensor:
        """Accumulates the gradients of this rank's micro-batches.

        Returns its share of the global mean loss.
        """
        model, device = self.model, self.group.device
        # The sum stays on the device, and is read only when a step is logged.
        total = torch.zeros((), dtype=torch.float64, device=device)
        for number, (batch, samples) in enumerate(micro_batches):
            # Ranks and micro-batches may differ in size by a sample: each sample weighs the same,
            # so that the step is the mean over the global batch however it was cut. The strategy
            # takes the mean over ranks, hence the factor world_size.
            weight = samples / self.order.size
            # A batch that counts for nothing must not move running statistics.
            kept = [] if samples else [b.clone() for b in model.buffers()]
            with self.strategy.accumulate(model, last=number + 1 == len(micro_batches)):
                with self.precision.autocast(), self.own_time.forward():
                    value = self.loss(model, to_device(batch, device))
                weighted = value * (weight * self.group.world_size * self.precision.loss_scale)
                if isinstance(self.strategy, DeepSpeed):
                    self.strategy.backward(model, weighted)
                else:
                    torch.autograd.backward(weighted)
            for buffer, before in zip(model.buffers(), kept, strict=bool(kept)):
                buffer.copy_(before)
            total += value.detach().to(torch.float64) * weight
        self.strategy.finish(model)
        return total

    def validation_due(self, step: int) -> bool:
        """Returns whether to validate after this step, at the interval or for a save that it ranks."""
        return self._at_interval(step) or (self.state.will_save and ranked_by_validation(self.config))

    def validate(self) -> dict[str, float]:
        """Returns the means over the validation data; {} without such data.

        Validates the averaged weights if there are any.
        """
        began = time.perf_counter()
        means: dict[str, float] = {}
        if self.validation is not None and self.measure is not None:
            with self.state.pause("validating"):
                means = self._validated(self.validation, self.measure)
        seconds = time.perf_counter() - began
        self.meter.add("evaluation", seconds)
        self.state.exclude_time(seconds)
        return means

    def _validated(self, data: Data, measure: Measure) -> dict[str, float]:
        self.settle()
        # Validate the same running statistics that a checkpoint holds: rank 0's.
        broadcast_buffers(self.model, self.group)
        with self.ema.applied() if self.ema else nullcontext():
            size = self.partition.largest
            return evaluate(self.model, data, measure, group=self.group, batch_size=size)

    def settle(self) -> None:
        """Gives all ranks the same weights, where a strategy lets them differ; a collective."""
        if isinstance(self.strategy, LocalSgd):
            self.strategy.exchange()

    def check_early_stop(self, step: int, validated: Mapping[str, float]) -> None:
        """Ends the run after this step if too many validations at the interval had no new best."""
        if self.early_stop and self._at_interval(step):
            self.early_stop.update(validated)
            if self.early_stop.should_stop:
                self.state.end()

    def log_step(
        self, local_loss: torch.Tensor, metrics: Mapping[str, torch.Tensor | float], validated: Mapping[str, float]
    ) -> float:
        """Reports the means since the last logged step.

        Returns the mean loss over all ranks; a collective.
        """
        self.meter.add("checkpoint", self.state.pop_stall_seconds())
        samples = self.order.size
        window = self.meter.close_window(float(local_loss), self.strategy.comm_stats(self.model), samples)
        values = {**metrics, **{f"validation_{k}": v for k, v in validated.items()}, **window.metrics}
        if self.precision.config.dtype == "fp16":
            values["loss_scale"] = self.precision.loss_scale
        self._check_ranking_metric(values)
        self.state.report(loss=window.loss, samples=samples, per_rank=window.per_rank, **values)
        return window.loss

    def _at_interval(self, step: int) -> bool:
        total = self.state.total or self.total_steps
        every = self.config.validate_every_steps or total
        return (step + 1) % every == 0 or step + 1 == total

    def _check_ranking_metric(self, metrics: Mapping[str, object]) -> None:
        best = self.config.state.checkpoint.retention
        known = {"loss", *metrics} | OPTIONAL_METRICS
        complete = self.state.will_save or not ranked_by_validation(self.config)
        if best.keep_best and best.metric not in known and complete:
            raise ConfigError(f"checkpoint.retention.metric={best.metric!r}: write one of {', '.join(sorted(known))}")


def ranked_by_validation(config: TrainerConfig) -> bool:
    """Returns whether validation ranks the checkpoints, so that each save needs one."""
    best = config.state.checkpoint.retention
    return bool(best.keep_best) and best.metric.startswith("validation_")


@contextmanager
def _named_out_of_memory(step: int, *, fixed_size: bool) -> Iterator[None]:
    """Raises OutOfMemory for torch's error, ConfigError if the next attempt would meet it again."""
    try:
        yield
    except RuntimeError as e:
        if not is_out_of_memory(e):
            raise
        raise out_of_memory(str(e), step=step, fixed=fixed_size) from e
