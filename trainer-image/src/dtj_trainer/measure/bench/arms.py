"""The arms: the Trainer, bare torch loops, and Lightning and Accelerate where they are installed.

Each arm trains one workload on all ranks of the existing group: the same model from the same seed, the same samples in
the same order, AdamW. All arms but the bare loops log the mean loss every few steps. No arm saves checkpoints.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.errors import ConfigError
from dtj_trainer.measure.bench.workloads import LR, Run
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import KINDS, StrategyConfig, blocks
from dtj_trainer.telemetry.record import Sink

Train = Callable[[Run], None]
TORCHRUN, FSDP2, LIGHTNING, ACCELERATE = "torchrun-ddp", "fsdp2", "lightning", "accelerate"
NEEDS = {LIGHTNING: "lightning", ACCELERATE: "accelerate"}
"""The library of an arm that torch does not bring."""
STRATEGIES = tuple(name for name in KINDS if name not in ("auto", "deepspeed"))


def bare(run: Run, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Trains with a plain torch loop."""
    model = wrap(run.model)
    run.wrapped(model)
    run.optimizer = optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(run.workload.total):
        loss = run.loss(model, run.batch(step))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        run.after_step(step)


def sharded(model: nn.Module) -> nn.Module:
    """Applies fully_shard as its documentation does."""
    for block in blocks(model):
        fully_shard(block)
    fully_shard(model)
    return model


def ours(run: Run, strategy: StrategyConfig, sinks: Sequence[Sink] = ()) -> None:
    """Trains with the Trainer and its defaults: records, meters, stop consensus, progress."""
    workload, trainer = run.workload, run.trainer
    trainer.config = TrainerConfig(
        steps=workload.total,
        global_batch_size=workload.batch,
        shuffle=False,
        optimizer=OptimizerConfig(lr=LR),
        strategy=strategy,
        state=StateConfig(log_every_steps=workload.log_every),
    )
    trainer.fit(run.model, run.data, loss=run.loss, after_step=run.after_step, sinks=sinks)
    optimizer = trainer.state.objects["optimizer"]
    assert isinstance(optimizer, torch.optim.Optimizer)
    run.optimizer = optimizer


def accelerate(run: Run) -> None:
    """Trains with the loop of Accelerate's guide, on ready batches, so that it need not split them."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=run.trainer.group.device.type == "cpu")
    model, optimizer = accelerator.prepare(run.model, torch.optim.AdamW(run.model.parameters(), lr=LR))
    run.wrapped(model)
    run.optimizer = optimizer.optimizer
    for step, batch in enumerate(run.loader()):
        loss = run.loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % run.workload.log_every == 0:
            accelerator.print(step + 1, accelerator.gather(loss.detach()).mean().item())
        run.after_step(step)


def lightning(run: Run) -> None:
    """Trains with Lightning's DDP strategy in our group, without progress bar, summary and checkpoints."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    workload, group = run.workload, run.trainer.group

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = run.model

        def training_step(self, batch: Any, step: int) -> torch.Tensor:
            loss = run.loss(self.inner, batch)
            if (step + 1) % workload.log_every == 0:
                self.log("loss", loss, sync_dist=True)
            return loss

        def on_train_start(self) -> None:
            run.wrapped(self.trainer.model)

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
            accelerator="cpu" if group.device.type == "cpu" else "gpu",
            devices=group.local_world_size,
            num_nodes=group.world_size // group.local_world_size,
            strategy=DDPStrategy(cluster_environment=LightningEnvironment(), process_group_backend=group.backend),
            logger=CSVLogger(folder),
            log_every_n_steps=workload.log_every,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Module(), run.loader())
    os.environ.update(kept)  # Lightning removes WORLD_SIZE at the end


OTHERS: dict[str, Train] = {
    TORCHRUN: partial(bare, wrap=DistributedDataParallel),
    FSDP2: partial(bare, wrap=sharded),
    LIGHTNING: lightning,
    ACCELERATE: accelerate,
}
"""The arms that are not the Trainer. torchrun starts the first one."""


def installed(arm: str) -> bool:
    """Returns whether the library of an arm can be imported here."""
    return arm not in NEEDS or importlib.util.find_spec(NEEDS[arm]) is not None


def named(arm: str, sinks: Sequence[Sink] = ()) -> Train:
    """Returns an arm by its name: one of OTHERS, or a strategy of the Trainer, whose records go to `sinks`.

    Raises ConfigError for another name, or where a library is not installed.
    """
    if arm in STRATEGIES:
        return partial(ours, strategy=KINDS[arm](), sinks=sinks)
    if arm not in OTHERS:
        raise ConfigError(f"--arm {arm}: write one of {', '.join((*STRATEGIES, *OTHERS))}")
    if not installed(arm):
        raise ConfigError(f"--arm {arm}: {NEEDS[arm]} is not installed here; install it, or leave the arm out")
    return OTHERS[arm]
