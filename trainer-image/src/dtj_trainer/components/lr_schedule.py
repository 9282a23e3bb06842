"""The learning rate over a run: warm-up, then cosine or constant, scaled by the batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dtj_trainer.components.elastic import RateRule, rate_factor
from dtj_trainer.data.step_size import StepSize
from dtj_trainer.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class ScheduleConfig:
    """The shape of the learning rate."""

    kind: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    """Steps of linear rise from 0 to the full rate."""
    floor: float = 0.0
    """Where a cosine ends, as a fraction of the full rate."""
    base_batch_size: int | None = None
    """The global batch size that the rate was chosen for. Another batch size scales the rate by
    `batch_rule`."""
    batch_rule: Literal["linear", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "cosine"):
            raise ConfigError(f"schedule.kind={self.kind!r}: write constant or cosine")
        if self.warmup_steps < 0:
            raise ConfigError(f"schedule.warmup_steps={self.warmup_steps}: write 0 or more")
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"schedule.floor={self.floor}: write a fraction of the full rate, 0 to 1")
        if self.batch_rule not in ("linear", "sqrt"):
            raise ConfigError(f"schedule.batch_rule={self.batch_rule!r}: write linear or sqrt")
        if self.base_batch_size is not None and self.base_batch_size < 1:
            raise ConfigError(f"schedule.base_batch_size={self.base_batch_size}: write 1 or more, or leave it out")


def factor(step: float, total: int, config: ScheduleConfig) -> float:
    """Returns the fraction of the full rate at `step` (0-based) of `total` (pure)."""
    if step < config.warmup_steps:
        # After a change of the batch a step may be no whole number.
        return min(1.0, (step + 1) / config.warmup_steps)
    if config.kind == "constant":
        return 1.0
    done = min(1.0, (step - config.warmup_steps) / max(1, total - config.warmup_steps))
    return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * done))


def batch_factor(global_batch_size: int, config: ScheduleConfig) -> float:
    """Returns the factor for this batch size (linear after Goyal et al., or square root for adaptive optimizers)."""
    if config.base_batch_size is None:
        return 1.0
    ratio = global_batch_size / config.base_batch_size
    return ratio if config.batch_rule == "linear" else math.sqrt(ratio)


class BatchSchedule(LambdaLR):
    """The schedule of a config: its rates follow from the batch, which a resumed run may have changed."""


def make_schedule(
    optimizer: Optimizer,
    config: ScheduleConfig,
    total: int,
    order: StepSize,
    *,
    by_samples: bool = False,
    rate_rule: RateRule = "Keep",
) -> BatchSchedule:
    """Returns a torch scheduler. Call its step() after each optimizer step, once the order has advanced.

    Args:
        optimizer: Its groups have the full rates.
        config: The shape of the rate.
        total: Steps of the run at the first world size.
        order: The batch of a step, and the samples taken so far.
        by_samples: Where steps may change their size, the place in the shape follows from the
            samples taken and not from the steps done.
        rate_rule: How the rate follows from the size of a step.
    """
    scale = batch_factor(order.global_batch_size, config)

    def rate(step: int) -> float:
        if order.batch_rule == "Global":
            return scale * factor(step, total, config)
        at = order.position / order.global_batch_size if by_samples else step
        return scale * rate_factor(order.growth, rate_rule) * factor(at, total, config)

    return BatchSchedule(optimizer, rate)


def set_rates(optimizer: Optimizer, scheduler: BatchSchedule) -> None:
    """Sets the rates of the next step by the present batch: those in a checkpoint are of the batch before."""
    shapes = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    rates = [base * rate(scheduler.last_epoch) for base, rate in shapes]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    scheduler.load_state_dict(scheduler.state_dict() | {"_last_lr": rates})
