"""The time of a step on two nodes with a core each: no communication, torch's ways, and ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.communication.link import sent_bytes
from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, make

WIDTH, LAYERS, BATCH = 1024, 12, 16
STEPS = 5
"""Steps of a trial; a step that is not counted comes first."""
CEILING, DDP = "no communication", "torch DDP"
ONE_BUCKET_MB = 1000
TORCH: dict[str, Callable[[DistributedDataParallel], None]] = {
    DDP: lambda _: None,
    "torch DDP, fp16 hook": lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "torch PowerSGD, rank 1, one bucket": lambda ddp: _torch_power_sgd(ddp, 1),
    "torch PowerSGD, rank 8, one bucket": lambda ddp: _torch_power_sgd(ddp, 8),
}
OURS: dict[str, dict[str, Any]] = {
    "bf16": {"method": "bf16"},
    "powersgd, rank 1": {"method": "powersgd", "rank": 1},
    "powersgd, rank 4": {"method": "powersgd", "rank": 4},
    "powersgd, rank 8": {"method": "powersgd", "rank": 8},
    "powersgd, rank 12": {"method": "powersgd", "rank": 12},
    "topk, 1 %": {"method": "topk"},
    "randomk, 1 %": {"method": "randomk"},
    "int8": {"method": "int8"},
    "onebit": {"method": "onebit"},
}
SCRATCH = "powersgd, rank 8, ddp_scratch"
ARMS = [CEILING, *TORCH, *OURS, SCRATCH]
LEVELS: dict[str, dict[str, Any]] = {
    "hierarchical": {"hierarchical": True},
    "hierarchical, bf16 between the nodes": {"hierarchical": True, "method": "bf16"},
}
"""Ways of four ranks on two nodes."""


def _torch_power_sgd(ddp: DistributedDataParallel, rank: int) -> None:
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook)


def net() -> nn.Module:
    """Returns an MLP of 12.6 M parameters: 50 MB of gradients."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


@dataclass
class Arm:
    """A model that is trained in one way. The gradients are used by no optimizer, whose time would be the same."""

    model: nn.Module
    strategy: Any = None
    silent: bool = False

    def step(self, x: torch.Tensor) -> None:
        """Takes a step: forward, backward, and all communication."""
        within = self.model.no_sync() if self.silent else nullcontext()  # type: ignore[operator]
        if self.strategy is not None:
            within = self.strategy.accumulate(self.model, last=True)
        with within:
            torch.autograd.backward(self.model(x).square().mean())
        if self.strategy is not None:
            self.strategy.finish(self.model)
            self.strategy.zero_grad(self.model, _NOTHING)
        else:
            self.model.zero_grad(set_to_none=True)


_NOTHING = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def arm(name: str, group: Group) -> Arm:
    """Returns an arm by its name."""
    if name == CEILING:
        return Arm(DistributedDataParallel(net()), silent=True)
    if name in TORCH:
        ddp = DistributedDataParallel(net(), bucket_cap_mb=ONE_BUCKET_MB if "one bucket" in name else 25)
        TORCH[name](ddp)
        return Arm(ddp)
    config = DdpScratchConfig() if name == SCRATCH else DdpConfig()
    options = (OURS | LEVELS)[name.removesuffix(", ddp_scratch")]
    strategy = make(config, None, CommunicationConfig(warmup_steps=0, **options))
    return Arm(strategy.wrap(net(), group), strategy)


def measure(trials: int, names: list[str]) -> dict[str, dict[str, list[float]]]:
    """Returns the milliseconds of a step, and the megabytes that rank 0 sends in it, by arm and trial.

    The arms take turns in one group.
    """
    group = Group.open(WorkerEnv.read())
    arms = {name: arm(name, group) for name in names}
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(group.rank))
    for one in arms.values():
        for _ in range(4):  # torch's PowerSGD begins with plain steps
            one.step(x)
    out: dict[str, dict[str, list[float]]] = {"ms": {n: [] for n in names}, "MB": {n: [] for n in names}}
    for trial in range(trials):
        first = trial % len(names)
        for name in names[first:] + names[:first]:
            arms[name].step(x)
            group.gather(torch.zeros(1))
            sent, began = sent_bytes(), time.perf_counter()
            for _ in range(STEPS):
                arms[name].step(x)
            group.gather(torch.zeros(1))
            out["ms"][name].append((time.perf_counter() - began) / STEPS * 1000)
            out["MB"][name].append((sent_bytes() - sent) / STEPS / 1e6)
    group.close()
    return out
