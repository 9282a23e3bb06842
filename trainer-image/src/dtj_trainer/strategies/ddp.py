"""torch's DistributedDataParallel: a whole copy of the model on each rank, gradients summed in buckets during backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dtj_trainer.comm.group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.telemetry.meter import Communication

CommHook = Literal["none", "fp16", "bf16"]


@dataclass(kw_only=True, slots=True)
class DdpConfig:
    """Options of DistributedDataParallel, under their own names where there is one."""

    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    fixed_buckets: bool = True
    """Settle the buckets before the first step. torch rebuilds them after it, in the order in which gradients came; a
    resumed run would then add up its first step in another order than an undisturbed one, and from 3 ranks on the last
    bits differ. Costs two all-reduces at the start."""
    comm_hook: CommHook = "none"

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ConfigError(f"strategy.bucket_cap_mb={self.bucket_cap_mb}: write megabytes above 0")
        if self.comm_hook not in ("none", "fp16", "bf16"):
            raise ConfigError(f"strategy.comm_hook={self.comm_hook!r}: write none, fp16 or bf16")
        if self.static_graph and self.fixed_buckets:
            raise ConfigError("strategy.static_graph rebuilds the buckets: write fixed_buckets: false beside it")


class Ddp:
    """The strategy `ddp`."""

    name = "ddp"

    def __init__(self, config: DdpConfig | None = None) -> None:
        self.config = config or DdpConfig()

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """See Strategy."""
        model = model.to(group.device)
        if group.world_size == 1:
            return model
        ddp = DistributedDataParallel(
            model,
            device_ids=[group.device.index] if group.device.type == "cuda" else None,
            bucket_cap_mb=self.config.bucket_cap_mb,
            gradient_as_bucket_view=self.config.gradient_as_bucket_view,
            static_graph=self.config.static_graph,
        )
        ddp._set_ddp_runtime_logging_sample_rate(10)  # type: ignore[no-untyped-call]
        if self.config.fixed_buckets:
            _settle_buckets(ddp)
        if self.config.comm_hook != "none":
            ddp.register_comm_hook(None, _hooks()[self.config.comm_hook])
        return ddp

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """See Strategy."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()

    def finish(self, model: nn.Module) -> None:
        """DDP's own backward has waited already."""

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """See Strategy."""
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def communication(self, model: nn.Module) -> Communication | None:
        """See Strategy. DDP measures one step in ten by itself."""
        if not isinstance(model, DistributedDataParallel):
            return None
        measured = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # nanoseconds
        total = float(measured.get("backward_comm_time", 0)) / 1e9
        return Communication(total=total, exposed=total - float(measured.get("backward_compute_comm_overlap_time", 0)) / 1e9)

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See Strategy."""
        optimizer.zero_grad(set_to_none=True)


class _Sum(nn.Module):
    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self._wanted = [p for p in parameters if p.requires_grad]  # a plain list: these are not our own parameters

    def forward(self) -> torch.Tensor:
        return torch.stack([p.sum() for p in self._wanted]).sum()


def _settle_buckets(ddp: DistributedDataParallel) -> None:
    """Two passes over the sum of all parameters: the first shows DDP an order of gradients, the second rebuilds by it."""
    model, ddp.module = ddp.module, _Sum(ddp.module.parameters())
    for _ in range(2):
        torch.autograd.backward(ddp())
    ddp.module = model
    ddp.zero_grad(set_to_none=True)


def _hooks() -> dict[str, Callable[[Any, Any], Any]]:
    from dtj_trainer.comm.hooks import compress  # only who compresses pays for the import

    return {"fp16": compress(torch.float16), "bf16": compress(torch.bfloat16)}
