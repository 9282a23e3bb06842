"""The cost of memory snapshots for the steps of a loop: none, as often as 2 % allows, and after each step.

Each rank is a pod of its own, so the partner's copies are sent: some kilobytes under DDP, and the
whole shard under fully_shard.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer.group import Rows
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.snapshots.memory import Every
from dtj_trainer.state import State, StateConfig

NONE, AUTO, EACH = "no snapshots", "snapshots, auto", "a snapshot after each step"
ARMS: dict[str, Every] = {NONE: 0, AUTO: "auto", EACH: 1}
WORKLOADS = [("small", 128, 64, 60, False), ("ddp", 1024, 64, 8, False), ("fsdp", 1024, 64, 8, True)]
"""Name, width, batch, steps of a trial, and whether the model is sharded."""
WARM_UP_STEPS = 15
"""Steps in which `auto` finds its interval."""


class Loop:
    """A training that runs some steps at a time: an MLP of four layers with AdamW."""

    def __init__(self, env: WorkerEnv, group: Group, width: int, batch: int, every: Every, sharded: bool) -> None:
        torch.manual_seed(0)
        self.width, self.batch = width, batch
        layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        if sharded:
            for layer in layers:
                fully_shard(layer)
        self.model: Callable[[torch.Tensor], torch.Tensor]
        self.model = fully_shard(layers) if sharded else DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(layers.parameters())
        config = StateConfig(log_every_steps=10**9, checkpoint=CheckpointConfig(snapshot_every_steps=every))
        self.state = State.attach(config, env, group, model=layers, optimizer=self.optimizer)
        self._steps: Iterator[int] = self.state.steps(10**9)

    def run(self, steps: int) -> float:
        """Returns the mean milliseconds of some steps."""
        next(self._steps)
        began = time.perf_counter()
        for _ in range(steps):
            self.model(torch.randn(self.batch, self.width)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            next(self._steps)
        return (time.perf_counter() - began) / steps * 1000

    def close(self) -> None:
        """Removes the snapshots."""
        self.state._snapshots.discard()


def measure(trials: int, width: int, batch: int, steps: int, sharded: bool) -> tuple[Rows, list[float]]:
    """Returns the milliseconds of a step by arm, and those that a snapshot after each step has cost rank 0.

    The arms take turns within one group. A snapshot costs the time that the training thread stood
    still, and the CPU time of the thread beside it.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    env = WorkerEnv(
        rank=rank, world_size=world, node_rank=rank, launched=True, job_uid=f"benchmark-{os.environ['MASTER_PORT']}",
        ordinal=rank, attempt=1,
    )  # fmt: skip
    group = Group.open(env, timeout=timedelta(seconds=300))
    loops = {name: Loop(env, group, width, batch, every, sharded) for name, every in ARMS.items()}
    for loop in loops.values():
        loop.run(WARM_UP_STEPS)
    rows: Rows = {name: [] for name in loops}
    costs: list[float] = []
    names = list(loops)
    for trial in range(trials):
        first = trial % len(names)
        for name in names[first:] + names[:first]:
            rows[name].append(loops[name].run(steps))
        costs.append(loops[EACH].state._snapshots.cost * 1000)
    for loop in loops.values():
        loop.close()
    return rows, costs
