"""Bytes of a rank's tensors by kind, just after the optimizer's last step, while its gradients are still there.

The count is exact: each storage on the ranks' device counts once, with all of its bytes. On a CPU,
host and device are one, so that the arms with offload have all of their tensors there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.report import Rows
from benchmarks.trainer.arms import ARMS, MEMORY_ONLY, installed
from benchmarks.trainer.workloads import MLP_WIDTH
from dtj_trainer.config import TrainerConfig
from dtj_trainer.measure.bench.workloads import mlp
from dtj_trainer.strategies.scratch.sharded_model import ShardedModel
from dtj_trainer.trainer import Trainer

KINDS = ("parameters", "gradients", "optimizer", "sum")


def measure(width: int = MLP_WIDTH) -> dict[str, Rows]:
    """Returns MB of the largest rank by kind and arm, of one trial: another one would have the same."""
    tables: dict[str, Rows] = {kind: {} for kind in KINDS}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name in (*installed(), *MEMORY_ONLY):
            with counting(trainer) as count:
                (ARMS | MEMORY_ONLY)[name](trainer, mlp(width, steps=2))
            mine = torch.tensor([count.bytes[kind] for kind in KINDS], dtype=torch.float64)
            most = (trainer.group.gather(mine).amax(0) / 1e6).tolist()
            for kind, megabytes in zip(KINDS, most, strict=True):
                tables[kind][name] = [megabytes]
    return tables


@dataclass(slots=True)
class Count:
    """The bytes by kind, as the last optimizer step of a run left them."""

    bytes: dict[str, int] = field(default_factory=dict)


@contextmanager
def counting(trainer: Trainer) -> Iterator[Count]:
    """Counts after each step of any optimizer inside."""
    count = Count()
    optimizers: dict[int, Optimizer] = {}

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        # ZeroRedundancyOptimizer has an optimizer of its own inside, which steps first.
        optimizers[id(optimizer)] = optimizer
        count.bytes = by_kind(optimizers.values(), trainer)

    handle = register_optimizer_step_post_hook(stepped)
    try:
        yield count
    finally:
        handle.remove()
        if hasattr(trainer, "state"):
            del trainer.state  # the next arm may be a bare loop


def by_kind(optimizers: Collection[Optimizer], trainer: Trainer) -> dict[str, int]:
    """Returns the bytes of all parameters, gradients and optimizer states on this rank's device, and their sum.

    The model of the Trainer's run, if there was one, may have flat groups with tensors that no optimizer has.
    """
    device = trainer.group.device
    model = trainer.state.objects["model"] if hasattr(trainer, "state") else None
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    parameters: list[torch.Tensor] = [p.detach() for p in held]
    gradients = [p.grad for p in held if p.grad is not None]
    for group in model.flat_groups if isinstance(model, ShardedModel) else []:
        weights, more = group.held()
        parameters += weights
        gradients += more
    states = [
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    found = {
        "parameters": storage_bytes(parameters, device),
        "gradients": storage_bytes(gradients, device),
        "optimizer": storage_bytes(states, device),
    }
    return found | {"sum": sum(found.values())}


def storage_bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Returns the bytes of the storages of tensors on a device, each counted once; a freed one has none."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    storages = [t.untyped_storage() for t in local if t.device.type == device.type]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
