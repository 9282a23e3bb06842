"""The arms: bare torch loops, our trainer, and Lightning and Accelerate where they are installed.

Each arm trains one workload on all ranks of the existing group: the same model from the same seed, the same samples in
the same order, AdamW. All arms but the bare loops log the mean loss every ten steps. No arm saves checkpoints.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer.workloads import GPT, LOG_EVERY, LR, Run, Workload
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import (
    DdpConfig,
    DdpScratchConfig,
    FsdpConfig,
    FsdpScratchConfig,
    StrategyConfig,
    Zero1Config,
    Zero2Config,
    blocks,
)
from dtj_trainer.trainer import Trainer

Arm = Callable[[Trainer, Workload], Run]


def bare(wrap: Callable[[nn.Module], nn.Module], trainer: Trainer, workload: Workload) -> Run:
    """Trains with a plain torch loop."""
    run = Run(workload, trainer)
    model = wrap(run.model)
    run.optimizer = optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(workload.total):
        loss = run.loss(model, run.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.after_step(step)
    return run


def tuned(trainer: Trainer, workload: Workload) -> Run:
    """Trains with a tuned DDP loop and the Trainer's settings: gradients are views, and freed before the forward."""
    run = Run(workload, trainer)
    model = DistributedDataParallel(run.model, gradient_as_bucket_view=True)
    run.optimizer = optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(workload.total):
        loss = run.loss(model, run.batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.after_step(step)
    return run


def zero(trainer: Trainer, workload: Workload) -> Run:
    """Trains with a DDP loop whose optimizer is torch's ZeroRedundancyOptimizer, as its documentation does."""
    run = Run(workload, trainer)
    model = DistributedDataParallel(run.model)
    run.optimizer = optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=LR)
    for step in range(workload.total):
        loss = run.loss(model, run.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.after_step(step)
    return run


def sharded(model: nn.Module) -> nn.Module:
    """Applies fully_shard as its documentation does."""
    for block in blocks(model):
        fully_shard(block)
    fully_shard(model)
    return model


def three_lines(trainer: Trainer, workload: Workload) -> Run:
    """Trains with the bare loop plus State's three lines."""
    run = Run(workload, trainer)
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
    return run


def ours(strategy: StrategyConfig, trainer: Trainer, workload: Workload = GPT) -> Run:
    """Trains with the Trainer and its defaults: records, meters, stop consensus, progress."""
    trainer.config = TrainerConfig(
        steps=workload.total,
        global_batch_size=workload.batch,
        shuffle=False,
        optimizer=OptimizerConfig(lr=LR),
        strategy=strategy,
        state=StateConfig(log_every_steps=LOG_EVERY),
    )
    run = Run(workload, trainer)
    trainer.fit(run.model, run.data, loss=run.loss, after_step=run.after_step)
    run.optimizer = trainer.state.objects["optimizer"]
    return run


def accelerate(trainer: Trainer, workload: Workload) -> Run:
    """Trains with the loop of Accelerate's guide, on ready batches, so that it need not split them."""
    from accelerate import Accelerator

    run = Run(workload, trainer)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(run.model, torch.optim.AdamW(run.model.parameters(), lr=LR))
    run.optimizer = optimizer.optimizer
    for step, batch in enumerate(run.loader()):
        loss = run.loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % LOG_EVERY == 0:
            accelerator.print(step + 1, accelerator.gather(loss.detach()).mean().item())
        run.after_step(step)
    return run


def lightning(trainer: Trainer, workload: Workload) -> Run:
    """Trains with Lightning's DDP strategy in our group, without progress bar, summary and checkpoints."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    run = Run(workload, trainer)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = run.model

        def training_step(self, batch: Any, step: int) -> torch.Tensor:
            loss = run.loss(self.inner, batch)
            if (step + 1) % LOG_EVERY == 0:
                self.log("loss", loss, sync_dist=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, step: int) -> None:
            run.after_step(step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            run.optimizer = torch.optim.AdamW(self.parameters(), lr=LR)
            return run.optimizer

    warnings.filterwarnings("ignore", module="lightning")  # advice on data workers and cores
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    kept = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        pl.Trainer(
            max_steps=workload.total,
            accelerator="cpu",
            devices=trainer.group.local_world_size,
            strategy=DDPStrategy(cluster_environment=LightningEnvironment(), process_group_backend="gloo"),
            logger=CSVLogger(folder),
            log_every_n_steps=LOG_EVERY,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Module(), run.loader())
    os.environ.update(kept)  # Lightning removes WORLD_SIZE at the end
    return run


BARE_DDP, TUNED_DDP, BARE_FSDP = "bare DDP loop", "bare DDP loop, tuned", "bare `fully_shard` loop"
BARE_ZERO = "bare DDP loop, `ZeroRedundancyOptimizer`"
ARMS: dict[str, Arm] = {
    BARE_DDP: lambda t, w: bare(DistributedDataParallel, t, w),
    TUNED_DDP: tuned,
    "`State` in that loop": three_lines,
    "Trainer, `ddp`": lambda t, w: ours(DdpConfig(), t, w),
    "Trainer, `ddp_scratch`": lambda t, w: ours(DdpScratchConfig(), t, w),
    "Accelerate, DDP": accelerate,
    "Lightning, DDP": lightning,
    BARE_ZERO: zero,
    "Trainer, `zero1`": lambda t, w: ours(Zero1Config(), t, w),
    "Trainer, `zero2`": lambda t, w: ours(Zero2Config(), t, w),
    BARE_FSDP: lambda t, w: bare(sharded, t, w),
    "Trainer, `fsdp`": lambda t, w: ours(FsdpConfig(), t, w),
    "Trainer, `fsdp_scratch`": lambda t, w: ours(FsdpScratchConfig(), t, w),
}
SMALL_BUCKETS = "Trainer, `zero2`, `bucket_cap_mb: 5`"
MEMORY_ONLY: dict[str, Arm] = {
    SMALL_BUCKETS: lambda t, w: ours(Zero2Config(bucket_cap_mb=5), t, w),
    "Trainer, `fsdp`, `cpu_offload: all`": lambda t, w: ours(FsdpConfig(cpu_offload="all"), t, w),
    "Trainer, `fsdp_scratch`, `cpu_offload: all`": lambda t, w: ours(FsdpScratchConfig(cpu_offload="all"), t, w),
    "Trainer, `fsdp_scratch`, `cpu_offload: optimizer`": lambda t, w: ours(
        FsdpScratchConfig(cpu_offload="optimizer"), t, w
    ),
}
"""Arms that are compared by memory only."""
OPTIONAL = {"Accelerate, DDP": "accelerate", "Lightning, DDP": "lightning"}


def installed() -> list[str]:
    """Returns the arms that can run here."""
    return [name for name in ARMS if name not in OPTIONAL or importlib.util.find_spec(OPTIONAL[name])]
