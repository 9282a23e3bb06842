"""The step of a model of many small tensors: one all-reduce for each of them, and buckets."""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.communication.speed import CEILING, DDP, STEPS, Arm
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.strategies import DdpScratchConfig, make

WIDTH, LAYERS, BATCH = 64, 200, 16
"""200 matrices of 16 KB."""
AFTER, WITHIN, SCRATCH = "one all-reduce per tensor, after backward", "the same within backward", "ddp_scratch"
SMALL_MB = 0.5
SMALL = f"ddp_scratch, buckets of {SMALL_MB} MB"
"""By default all gradients of this model are one bucket, which leaves after the backward."""
ARMS = (CEILING, AFTER, WITHIN, DDP, SCRATCH, SMALL)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


class PerTensor(Arm):
    """Sends each gradient by itself: one after the other at the end, or from a hook as soon as it is there."""

    def __init__(self, model: nn.Module, overlaps: bool) -> None:
        super().__init__(model)
        self.works: list[dist.Work | None] = []
        if overlaps:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(self.send)
        self.overlaps = overlaps

    def send(self, parameter: torch.Tensor) -> None:
        """Begins to send the gradient of a parameter."""
        assert parameter.grad is not None
        parameter.grad.div_(dist.get_world_size())
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))

    def step(self, x: torch.Tensor) -> None:
        """Takes a step: forward, backward, and all communication."""
        torch.autograd.backward(self.model(x).square().mean())
        if not self.overlaps:
            for parameter in self.model.parameters():
                self.send(parameter)
                self.wait()
        self.wait()
        self.model.zero_grad(set_to_none=True)

    def wait(self) -> None:
        """Waits until everything has arrived."""
        works, self.works = self.works, []
        for work in works:
            if work is not None:
                work.wait()


def arm(name: str, group: Group) -> Arm:
    """Returns an arm by its name."""
    if name in (AFTER, WITHIN):
        return PerTensor(net(), overlaps=name == WITHIN)
    if name in (SCRATCH, SMALL):
        strategy = make(DdpScratchConfig(bucket_cap_mb=SMALL_MB) if name == SMALL else DdpScratchConfig())
        return Arm(strategy.wrap(net(), group), strategy)
    return Arm(DistributedDataParallel(net()), silent=name == CEILING)


def measure(trials: int) -> dict[str, list[float]]:
    """Returns the milliseconds of a step by arm and trial. The arms take turns in one group."""
    group = Group.open(WorkerEnv.read())
    arms = {name: arm(name, group) for name in ARMS}
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(group.rank))
    rows: dict[str, list[float]] = {name: [] for name in ARMS}
    for trial in range(trials + 1):
        first = trial % len(ARMS)
        for name in ARMS[first:] + ARMS[:first]:
            take = partial(arms[name].step, x)
            take()
            group.gather(torch.zeros(1))
            began = time.perf_counter()
            for _ in range(STEPS):
                take()
            group.gather(torch.zeros(1))
            if trial:  # the first one connects
                rows[name].append((time.perf_counter() - began) / STEPS * 1000)
    group.close()
    return rows
