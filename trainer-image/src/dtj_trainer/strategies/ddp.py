"""torch's DistributedDataParallel: the whole model on each rank, gradients summed in buckets during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dtj_trainer import torch_private
from dtj_trainer.communication import CommunicationConfig, GradientQueue, make_queue
from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError

SAMPLE_EVERY = 4
"""Steps between two looks at what DDP has measured."""


@dataclass(kw_only=True, slots=True)
class DdpConfig:
    """Options of DistributedDataParallel, under their own names where there is one."""

    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    find_unused_parameters: bool = False
    """Write true for a model whose step may leave parameters out; without it torch raises an error in such a step."""
    fixed_buckets: bool = True
    """Fix the buckets before the first step. torch rebuilds them after it, in the order in which
    gradients came. A resumed run would then add up its first step in another order than an
    undisturbed run, and from 3 ranks on the last bits would differ. Costs two all-reduces at the
    start."""

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ConfigError(f"strategy.bucket_cap_mb={self.bucket_cap_mb}: write megabytes above 0")
        if self.static_graph and self.fixed_buckets:
            raise ConfigError("strategy.static_graph rebuilds the buckets: write fixed_buckets: false beside it")


class DdpTimes:
    """Adds up what DDP itself measures of its collectives: on a GPU by events, and so device time."""

    def __init__(self) -> None:
        self._iteration = self._steps = 0
        self._total = self._exposed = 0.0

    def begin(self, ddp: DistributedDataParallel) -> None:
        """Makes DDP measure each step; on a GPU one in ten, because a measurement waits for events."""
        torch_private.measure_ddp(ddp, 10 if ddp.device_type == "cuda" else 1)

    def read(self, ddp: DistributedDataParallel) -> None:
        """Reads the newest measurement, which costs 30 µs."""
        times = torch_private.ddp_times(ddp)
        if times.get("iteration", 0) > self._iteration:
            self._iteration, self._steps = times["iteration"], self._steps + 1
            total, overlapped = times.get("backward_comm_time", 0), times.get("backward_compute_comm_overlap_time", 0)
            self._total += total / 1e9
            self._exposed += max(0, total - overlapped) / 1e9

    def pop(self) -> CommStats | None:
        """Returns the means per measured step since the last call; None without such a step."""
        if not self._steps:
            return None
        found = CommStats(total=self._total / self._steps, exposed=self._exposed / self._steps)
        self._steps, self._total, self._exposed = 0, 0.0, 0.0
        return found


class Ddp:
    """The strategy `ddp`."""

    name = "ddp"

    def __init__(self, config: DdpConfig | None = None, communication: CommunicationConfig | None = None) -> None:
        self.config = config or DdpConfig()
        self.communication = communication or CommunicationConfig()
        self.queue: GradientQueue | None = None
        self._finished = 0
        self._times = DdpTimes()
        self._last: CommStats | None = None

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """Moves the model to the group's device and wraps it.

        A single rank keeps the plain model.
        """
        model = model.to(group.device)
        if not self.communication.is_plain:
            from dtj_trainer.strategies import comm_hook  # imported only for compression

            comm_hook.reject_sparse(model)
            self.queue = make_queue(model, group, self.communication)
        if group.world_size == 1:
            return model
        ddp = DistributedDataParallel(
            model,
            device_ids=[group.device.index] if group.device.type == "cuda" else None,
            bucket_cap_mb=self.config.bucket_cap_mb,
            gradient_as_bucket_view=self.config.gradient_as_bucket_view,
            static_graph=self.config.static_graph,
            find_unused_parameters=self.config.find_unused_parameters,
        )
        self._times.begin(ddp)
        if self.config.fixed_buckets:
            _fix_buckets(ddp)
        if self.queue is not None:
            ddp.register_comm_hook(self.queue, comm_hook.send_bucket)
        return ddp

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Suppresses DDP's all-reduces in all micro-batches but the last."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()

    def finish(self, model: nn.Module) -> None:
        """Reads what DDP has measured every few steps.

        Its own backward has waited already.
        """
        self._finished += 1
        if self.queue is not None and not isinstance(model, DistributedDataParallel):
            self.queue.finish()
        if isinstance(model, DistributedDataParallel) and self._finished % SAMPLE_EVERY == 2:
            self._times.read(model)

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """Clips as torch does: every rank has all gradients."""
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """Returns DDP's own measurements of one step in four (GPU: ten)."""
        self._last = self._times.pop() or self._last
        return self._last

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Clears the gradients of all parameters: those that the optimizer does not have count in the norm."""
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)


class _Sum(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model  # DDP broadcasts its buffers in every forward

    def forward(self) -> torch.Tensor:
        return torch.stack([p.sum().float() for p in self.model.parameters() if p.requires_grad]).sum()


def _fix_buckets(ddp: DistributedDataParallel) -> None:
    """Runs two passes over the sum of all parameters.

    The first shows DDP an order of gradients, the second rebuilds the buckets by it.
    """
    model, ddp.module = ddp.module, _Sum(ddp.module)
    for _ in range(2):
        torch.autograd.backward(ddp())
    ddp.module = model
    ddp.zero_grad(set_to_none=True)
