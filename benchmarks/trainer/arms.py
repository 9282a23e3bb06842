"""The arms: those of `dtj bench`, and variants of its loops.

Each arm trains one workload on all ranks of the existing group: the same model from the same seed, the same samples in
the same order, AdamW. All arms but the bare loops log the mean loss every ten steps. No arm saves checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer.measure.bench import arms
from dtj_trainer.measure.bench.arms import Train, bare, ours, sharded
from dtj_trainer.measure.bench.workloads import LOG_EVERY, LR, Run, Workload
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import (
    DdpConfig,
    DdpScratchConfig,
    FsdpConfig,
    FsdpScratchConfig,
    StrategyConfig,
    Zero1Config,
    Zero2Config,
)
from dtj_trainer.trainer import Trainer

Arm = Callable[[Trainer, Workload], Run]


def turn(train: Train) -> Arm:
    """Returns an arm that trains a workload once, and returns what it has kept."""

    def arm(trainer: Trainer, workload: Workload) -> Run:
        run = Run(workload, trainer)
        train(run)
        return run

    return arm


def tuned(run: Run) -> None:
    """Trains with a tuned DDP loop and the Trainer's settings: gradients are views, and freed before the forward."""
    model = DistributedDataParallel(run.model, gradient_as_bucket_view=True)
    run.optimizer = optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(run.workload.total):
        loss = run.loss(model, run.batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.after_step(step)


def zero(run: Run) -> None:
    """Trains with a DDP loop whose optimizer is torch's ZeroRedundancyOptimizer, as its documentation does."""
    model = DistributedDataParallel(run.model)
    run.optimizer = optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=LR)
    for step in range(run.workload.total):
        loss = run.loss(model, run.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.after_step(step)


def three_lines(run: Run) -> None:
    """Trains with the bare loop plus State's three lines."""
    trainer, workload = run.trainer, run.workload
    model = DistributedDataParallel(run.model)
    run.optimizer = optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    config = StateConfig(log_every_steps=LOG_EVERY)
    state = State.attach(config, trainer.env, trainer.group, model=model, optimizer=optimizer)
    for step in state.steps(workload.total):
        loss = run.loss(model, run.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.report(loss=loss, samples=workload.batch)
        run.after_step(step)


def trainer_with(strategy: Callable[[], StrategyConfig]) -> Arm:
    """Returns the Trainer's arm with one strategy."""
    return turn(lambda run: ours(run, strategy()))


BARE_DDP, TUNED_DDP, BARE_FSDP = "bare DDP loop", "bare DDP loop, tuned", "bare `fully_shard` loop"
BARE_ZERO = "bare DDP loop, `ZeroRedundancyOptimizer`"
ARMS: dict[str, Arm] = {
    BARE_DDP: turn(partial(bare, wrap=DistributedDataParallel)),
    TUNED_DDP: turn(tuned),
    "`State` in that loop": turn(three_lines),
    "Trainer, `ddp`": trainer_with(DdpConfig),
    "Trainer, `ddp_scratch`": trainer_with(DdpScratchConfig),
    "Accelerate, DDP": turn(arms.accelerate),
    "Lightning, DDP": turn(arms.lightning),
    BARE_ZERO: turn(zero),
    "Trainer, `zero1`": trainer_with(Zero1Config),
    "Trainer, `zero2`": trainer_with(Zero2Config),
    BARE_FSDP: turn(partial(bare, wrap=sharded)),
    "Trainer, `fsdp`": trainer_with(FsdpConfig),
    "Trainer, `fsdp_scratch`": trainer_with(FsdpScratchConfig),
}
SMALL_BUCKETS = "Trainer, `zero2`, `bucket_cap_mb: 5`"
MEMORY_ONLY: dict[str, Arm] = {
    SMALL_BUCKETS: trainer_with(partial(Zero2Config, bucket_cap_mb=5)),
    "Trainer, `fsdp`, `cpu_offload: all`": trainer_with(partial(FsdpConfig, cpu_offload="all")),
    "Trainer, `fsdp_scratch`, `cpu_offload: all`": trainer_with(partial(FsdpScratchConfig, cpu_offload="all")),
    "Trainer, `fsdp_scratch`, `cpu_offload: optimizer`": trainer_with(
        partial(FsdpScratchConfig, cpu_offload="optimizer")
    ),
}
"""Arms that are compared by memory only."""
OPTIONAL = {"Accelerate, DDP": arms.ACCELERATE, "Lightning, DDP": arms.LIGHTNING}


def installed() -> list[str]:
    """Returns the arms that can run here."""
    return [name for name in ARMS if name not in OPTIONAL or arms.installed(OPTIONAL[name])]
