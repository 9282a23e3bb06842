"""The whole loop: `Trainer(config).fit(model, data, loss=...)`.

It is the loop that a user of `State` would write, with strategy, optimizer, schedule, accumulation and validation in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from dtj_trainer import schedule, strategies
from dtj_trainer.comm.group import Group
from dtj_trainer.data.order import DataOrder, Indices
from dtj_trainer.data.source import BatchDataset, MapDataset, fetch, in_order
from dtj_trainer.env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.optim import OptimizerConfig, make_optimizer
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import DdpConfig, StrategyConfig

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""(model, batch) -> mean loss over the batch."""
Measure = Callable[[nn.Module, Any], Mapping[str, torch.Tensor]]
"""(model, batch) -> means over the batch, by name."""


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """One run. Give `epochs` or `steps`."""

    epochs: float | None = None
    steps: int | None = None
    global_batch_size: int = 64
    """Samples of one optimizer step over all ranks: steps and results don't depend on how many ranks there are."""
    micro_batch_size: int | None = None
    """The most samples that go through the model at once on one rank; the rest of a step's share is accumulated."""
    seed: int = 0
    shuffle: bool = True
    clip_norm: float | None = None
    validate_every_steps: int | None = None
    """Beside the validation at the end."""
    cpu_threads: int | None = None
    """torch threads of one process on the CPU; None: as the environment says (OMP_NUM_THREADS)."""
    state: StateConfig = field(default_factory=StateConfig)
    strategy: StrategyConfig = field(default_factory=DdpConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: schedule.ScheduleConfig = field(default_factory=schedule.ScheduleConfig)

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError("write either epochs or steps, not both and not neither")
        if self.epochs is not None and self.epochs <= 0:
            raise ConfigError(f"epochs={self.epochs}: write a number above 0")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps={self.steps}: write 1 or more")
        if self.global_batch_size < 1:
            raise ConfigError(f"global_batch_size={self.global_batch_size}: write samples per step over all ranks, 1 or more")
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size={self.micro_batch_size}: write 1 or more, or leave it out")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: write 0 or more")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError(f"clip_norm={self.clip_norm}: write a norm above 0, or leave it out")
        if self.validate_every_steps is not None and self.validate_every_steps < 1:
            raise ConfigError(f"validate_every_steps={self.validate_every_steps}: write 1 or more, or leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended."""

    step: int
    loss: float | None
    """Mean loss of the last step over all ranks; None if this attempt had no step left to do."""
    validation: dict[str, float]


class Trainer:
    """Trains one model on one group of ranks, and goes on where the newest checkpoint stands."""

    def __init__(self, config: TrainerConfig, env: WorkerEnv | None = None) -> None:
        self.config = config
        self.env = env or WorkerEnv.read()
        if config.cpu_threads:
            torch.set_num_threads(config.cpu_threads)
        self.group = Group.open(self.env, timeout=timedelta(seconds=config.state.collective_timeout_seconds))

    def fit(
        self,
        model: nn.Module,
        data: MapDataset | BatchDataset,
        *,
        loss: Loss,
        validation: MapDataset | BatchDataset | None = None,
        measure: Measure | None = None,
        after_step: Callable[[int], None] | None = None,
    ) -> Result:
        """Runs to the end. Raises Stopped after SIGTERM. `after_step(step)`: the caller's own word in the loop.

        `model` must have the same weights on all ranks (seed before building it).
        """
        config, group = self.config, self.group
        strategy = strategies.make(config.strategy)
        wrapped = strategy.wrap(model, group)
        optimizer = make_optimizer(wrapped.parameters(), config.optimizer)
        order = DataOrder(length=len(data), global_batch_size=config.global_batch_size, seed=config.seed, shuffle=config.shuffle)
        total = config.steps if config.steps is not None else order.steps_for(config.epochs or 0)
        if total < 1:
            raise ConfigError(f"epochs={config.epochs} is less than one step of global_batch_size={config.global_batch_size}")
        order.share(group.rank, group.world_size)  # too small a batch for the world is said before the first collective
        scheduler = schedule.make_schedule(optimizer, config.schedule, total, config.global_batch_size)
        state = State.attach(config.state, self.env, group, model=wrapped, optimizer=optimizer, scheduler=scheduler, data=order)
        self.state = state
        mean_loss: float | None = None
        measured: dict[str, float] = {}

        for step in state.steps(total):
            wrapped.train()
            mine = order.share(group.rank, group.world_size)
            local = self._forward_backward(strategy, wrapped, data, mine, loss)
            norm = strategy.clip(wrapped, config.clip_norm) if config.clip_norm else None
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            metrics: dict[str, torch.Tensor | float] = {"epoch": order.epoch, "lr": scheduler.get_last_lr()[0]}
            scheduler.step()
            order.advance()
            every = config.validate_every_steps or total
            if validation is not None and measure and (step + 1 == total or (step + 1) % every == 0):
                measured = self.evaluate(wrapped, validation, measure)
            if state.due:
                (mean_loss,) = group.mean(local * group.world_size)
                if norm is not None:
                    metrics["grad_norm"] = norm
                metrics |= {f"validation_{k}": v for k, v in measured.items()}
            state.report(loss=mean_loss, samples=config.global_batch_size, **metrics)
            if after_step:
                after_step(step)
        if validation is not None and measure and not measured:
            measured = self.evaluate(wrapped, validation, measure)
        return Result(step=state.step, loss=mean_loss, validation=measured)

    def _forward_backward(
        self, strategy: strategies.Strategy, model: nn.Module, data: MapDataset | BatchDataset, mine: Indices, loss: Loss
    ) -> torch.Tensor:
        """Gradients of this rank's share in micro-batches; gives its part of the global mean loss."""
        config, group = self.config, self.group
        size = config.micro_batch_size or len(mine)
        starts = range(0, len(mine), size)
        total = torch.zeros((), dtype=torch.float64)
        for start in starts:
            part = mine[start : start + size]
            batch = to_device(fetch(data, part), group.device)
            # Ranks and micro-batches may differ in size by a sample: each sample weighs the same, so that the step is
            # the mean over the global batch however it was cut. The strategy takes the mean over ranks, hence the world.
            weight = len(part) / config.global_batch_size
            with strategy.accumulate(model, last=start == starts[-1]):
                value = loss(model, batch)
                torch.autograd.backward(value * (weight * group.world_size))
            total += value.detach().to("cpu", torch.float64) * weight
        strategy.finish(model)
        return total

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: MapDataset | BatchDataset, measure: Measure) -> dict[str, float]:
        """Means of `measure` over a data set, each sample once, over all ranks."""
        model.eval()
        module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        sums: dict[str, float] = {}
        count = 0
        for batch, n in in_order(data, self.config.micro_batch_size or 1024, self.group.rank, self.group.world_size):
            for name, value in measure(module, to_device(batch, self.group.device)).items():
                sums[name] = sums.get(name, 0.0) + float(value) * n
            count += n
        everyone: dict[str, float] = {}
        total = 0
        for part, n in self.group.all_objects((sums, count)):
            total += n
            for name, value in part.items():
                everyone[name] = everyone.get(name, 0.0) + value
        model.train()
        return {name: value / total for name, value in everyone.items()}

    def close(self) -> None:
        """Ends the groups. Use `with Trainer(config) as trainer` to have it called."""
        self.group.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # after an error peers may be gone, and an orderly goodbye would wait for them
            self.close()


def to_device(batch: Any, device: torch.device) -> Any:
    """Tensors in nested tuples, lists and dicts, moved."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(b, device) for b in batch)
    if isinstance(batch, dict):
        return {k: to_device(b, device) for k, b in batch.items()}
    return batch
