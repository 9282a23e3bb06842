"""torch's fully_shard (FSDP2), flat or hybrid: shards within a group of ranks, replicas over the other groups."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats, CommTimer
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.blocks import blocks
from dtj_trainer.strategies.cpu_offload import CpuOffload, check_cpu_offload
from dtj_trainer.strategies.initial_weights import Fill, WeightBroadcast
from dtj_trainer.torch_private import DefaultAllGather, DefaultReduceScatter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(kw_only=True, slots=True)
class FsdpConfig:
    """Options of fully_shard."""

    reshard_after_forward: bool = True
    """False keeps whole weights from forward to backward: more memory, one all-gather less."""
    param_dtype: Dtype = "fp32"
    """The type in which weights are gathered and computed; the shards and the optimizer stay in fp32."""
    reduce_dtype: Dtype = "fp32"
    cpu_offload: CpuOffload = False
    """True or all: parameters, gradients and optimizer state live in host memory, by torch's
    CPUOffloadPolicy, which moves them together."""
    reduce_every_micro_batch: bool = False
    """False: an accumulated step sends gradients once, and keeps them whole on each rank until
    then, as many bytes as the model in fp32. True: each micro-batch sends them, and each rank keeps
    its shard (`hsdp`: replicas are added up once)."""

    def __post_init__(self) -> None:
        for field in ("param_dtype", "reduce_dtype"):
            if getattr(self, field) not in DTYPES:
                raise ConfigError(f"strategy.{field}={getattr(self, field)!r}: write fp32, bf16 or fp16")
        check_cpu_offload(self.cpu_offload)
        if self.cpu_offload == "optimizer":
            raise ConfigError(
                "strategy.cpu_offload='optimizer': torch's CPUOffloadPolicy moves parameters, gradients and optimizer "
                "state together; write cpu_offload: all, or strategy fsdp_scratch"
            )


@dataclass(kw_only=True, slots=True)
class HsdpConfig(FsdpConfig):
    """Options of `hsdp`: those of `fsdp`, and how many ranks hold one replica."""

    shard_size: int | None = None
    """Ranks that share one replica of the model; None: those of one node, whose links are fast."""

    def __post_init__(self) -> None:
        FsdpConfig.__post_init__(self)
        if self.shard_size is not None and self.shard_size < 1:
            raise ConfigError(f"strategy.shard_size={self.shard_size}: write 1 or more, or leave it out")


class TimedAllGather(DefaultAllGather):
    """fully_shard's all-gather, which blocks on a CPU, timed."""

    def __init__(self, comm_timer: CommTimer) -> None:
        self._comm_timer = comm_timer

    def __call__(self, *args: Any, **kwargs: Any) -> dist.Work | None:
        """Gathers, and counts the wait."""
        with self._comm_timer.waiting():
            return super().__call__(*args, **kwargs)


class TimedReduceScatter(DefaultReduceScatter):
    """fully_shard's reduce-scatter, and hsdp's all-reduce that follows, timed."""

    def __init__(self, comm_timer: CommTimer) -> None:
        self._comm_timer = comm_timer
        self._before_all_reduce = 0.0

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Allocates, and notes the time.

        Where one rank holds a whole replica and nothing is scattered, this is the last call before
        an all-reduce.
        """
        self._before_all_reduce = time.perf_counter()
        return super().allocate(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> dist.Work:
        """Scatters, and counts the wait."""
        with self._comm_timer.waiting():
            work = super().__call__(*args, **kwargs)
        self._before_all_reduce = time.perf_counter()
        return work

    def after_all_reduce(self, _: torch.Tensor) -> None:
        """Counts the all-reduce that has just ended: fully_shard has a hook after it, but no way to replace it."""
        self._comm_timer.add_blocked(time.perf_counter() - self._before_all_reduce)


def time_collectives(modules: Sequence[FSDPModule], comm_timer: CommTimer, *, replicas: bool = False) -> None:
    """Times the collectives of modules that fully_shard has wrapped.

    Args:
        modules: Each of them.
        comm_timer: Adds up the times.
        replicas: Whether an all-reduce over replicas follows each reduce-scatter.
    """
    for module in modules:
        scatter = TimedReduceScatter(comm_timer)
        module.set_custom_all_gather(TimedAllGather(comm_timer))
        module.set_custom_reduce_scatter(scatter)
        if replicas:
            module.set_all_reduce_hook(scatter.after_all_reduce)


class Fsdp:
    """The strategies `fsdp` and `hsdp`."""

    def __init__(self, config: FsdpConfig | None = None, pattern: str | None = None, fill: Fill | None = None) -> None:
        self.config = config or FsdpConfig()
        self._fill = fill
        self._block_pattern = pattern
        self.name = "hsdp" if isinstance(self.config, HsdpConfig) else "fsdp"

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """Shards the model in place, block by block."""
        config = self.config
        kind = group.device.type
        if scalars := [name for name, p in model.named_parameters() if not p.dim()]:
            raise ConfigError(
                f"strategy={self.name} can't shard {', '.join(scalars)}, which has no dimension: give it shape (1,), "
                "or write strategy fsdp_scratch or ddp"
            )
        if isinstance(config, HsdpConfig):
            size = config.shard_size or group.local_world_size
            if group.world_size % size:
                raise ConfigError(
                    f"strategy.shard_size={size} does not divide the {group.world_size} ranks: write a divisor"
                )
            mesh = init_device_mesh(kind, (group.world_size // size, size), mesh_dim_names=("replicate", "shard"))
        else:
            mesh = init_device_mesh(kind, (group.world_size,))
        precision = MixedPrecisionPolicy()
        # Named types cost casts even where they change nothing.
        if (config.param_dtype, config.reduce_dtype) != ("fp32", "fp32"):
            dtypes = DTYPES[config.param_dtype], DTYPES[config.reduce_dtype]
            precision = MixedPrecisionPolicy(param_dtype=dtypes[0], reduce_dtype=dtypes[1])
        offload = CPUOffloadPolicy(pin_memory=kind == "cuda") if config.cpu_offload else OffloadPolicy()
        modules, broadcast = [*blocks(model, self._block_pattern), model], WeightBroadcast(model, group, self._fill)
        # A rank whose model is on the meta device never holds more than one of these modules whole.
        for module in modules:
            broadcast(module)
            reshard = None if module is model else config.reshard_after_forward
            # This moves the module to the device: a model that fits on no device as a whole must
            # not be moved first.
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=precision, offload_policy=offload)
        self._comm_timer = CommTimer(group)
        if self._comm_timer.enabled:
            sharded = [module for module in modules if isinstance(module, FSDPModule)]
            time_collectives(sharded, self._comm_timer, replicas=isinstance(config, HsdpConfig))
        return model

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Sets in which micro-batches gradients are sent, and times the collectives inside."""
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(last or self.config.reduce_every_micro_batch)
        model.set_requires_all_reduce(last)
        with self._comm_timer.counting():
            yield

    def finish(self, model: nn.Module) -> None:
        """Counts the step. FSDP's own backward has waited already."""
        self._comm_timer.step_done()

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """Clips as torch does.

        The norm of sharded gradients is a DTensor; its full value is the same on all ranks.
        """
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """Returns the means since the last call; None on a GPU, where a profile shows the overlap.

        On a CPU fully_shard waits for each collective, so nothing overlaps.
        """
        return self._comm_timer.pop_stats()

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Clears the gradients of all parameters: those that the optimizer does not have count in the norm."""
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
