"""torch's fully_shard (FSDP2), flat or hybrid: shards within a group of ranks, replicas of it over the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dtj_trainer.comm.group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.base import blocks
from dtj_trainer.telemetry.meter import Communication

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Dtype = Literal["fp32", "bf16", "fp16"]


@dataclass(kw_only=True, slots=True)
class FsdpConfig:
    """Options of fully_shard."""

    reshard_after_forward: bool = True
    """False keeps whole weights from forward to backward: more memory, one all-gather less."""
    param_dtype: Dtype = "fp32"
    """What weights are gathered and computed in; the shards and the optimizer stay in fp32."""
    reduce_dtype: Dtype = "fp32"
    cpu_offload: bool = False

    def __post_init__(self) -> None:
        for field in ("param_dtype", "reduce_dtype"):
            if getattr(self, field) not in DTYPES:
                raise ConfigError(f"strategy.{field}={getattr(self, field)!r}: write fp32, bf16 or fp16")


@dataclass(kw_only=True, slots=True)
class HsdpConfig(FsdpConfig):
    """`hsdp`: FsdpConfig and how many ranks hold one copy."""

    shard_size: int | None = None
    """Ranks that share one copy of the model; None: those of one node, whose links are fast."""

    def __post_init__(self) -> None:
        FsdpConfig.__post_init__(self)
        if self.shard_size is not None and self.shard_size < 1:
            raise ConfigError(f"strategy.shard_size={self.shard_size}: write 1 or more, or leave it out")


class Fsdp:
    """The strategies `fsdp` and `hsdp`."""

    def __init__(self, config: FsdpConfig | None = None) -> None:
        self.config = config or FsdpConfig()
        self.name = "hsdp" if isinstance(self.config, HsdpConfig) else "fsdp"

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """See Strategy."""
        config = self.config
        kind = group.device.type
        if isinstance(config, HsdpConfig):
            size = config.shard_size or group.local_world_size
            if group.world_size % size:
                raise ConfigError(f"strategy.shard_size={size} does not divide the {group.world_size} ranks: write a divisor")
            mesh = init_device_mesh(kind, (group.world_size // size, size), mesh_dim_names=("replicate", "shard"))
        else:
            mesh = init_device_mesh(kind, (group.world_size,))
        precision = MixedPrecisionPolicy()
        if (config.param_dtype, config.reduce_dtype) != ("fp32", "fp32"):  # named types cost casts even where they change nothing
            precision = MixedPrecisionPolicy(param_dtype=DTYPES[config.param_dtype], reduce_dtype=DTYPES[config.reduce_dtype])
        offload = CPUOffloadPolicy(pin_memory=kind == "cuda") if config.cpu_offload else OffloadPolicy()
        if not config.cpu_offload:
            model = model.to(group.device)
        for block in blocks(model):
            fully_shard(
                block, mesh=mesh, reshard_after_forward=config.reshard_after_forward, mp_policy=precision, offload_policy=offload
            )
        fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload)
        return model

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """See Strategy."""
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(last)
        yield

    def finish(self, model: nn.Module) -> None:
        """FSDP's own backward has waited already."""

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """See Strategy. The norm of sharded gradients is itself a DTensor; its full value is the same on all ranks."""
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def communication(self, model: nn.Module) -> Communication | None:
        """Not measured: see a profile."""
        return None

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See Strategy."""
        optimizer.zero_grad(set_to_none=True)
