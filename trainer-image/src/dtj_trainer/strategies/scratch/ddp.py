"""Data parallelism from torch.distributed primitives, to be read. Equal to torch's DDP in result.

Three ideas make it fast, and each is a few lines here:
- bucketing: gradients lie end to end in flat buffers, so a step is a few big all-reduces instead of many small ones;
- overlap: a hook on each parameter tells when its gradient is final, and a bucket that is full leaves at once, while
  backward still computes the gradients of earlier layers;
- no copies: the gradients are views into the buckets, so autograd adds into them and the collective works on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats, CommTimer
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.scratch.buckets import Bucket, make_buckets, on_gradient

TWICE = (
    "a parameter got two gradients in one backward: a part of the model is called twice and checkpointed reentrantly; "
    "write torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or strategy fsdp_scratch"
)


@dataclass(kw_only=True, slots=True)
class DdpScratchConfig:
    """Options of `ddp_scratch`."""

    bucket_cap_mb: float = 25.0

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ConfigError(f"strategy.bucket_cap_mb={self.bucket_cap_mb}: write megabytes above 0")


class ScratchDdpModel(nn.Module):
    """A module whose gradients are the mean over all ranks once `finish` has returned."""

    def __init__(self, module: nn.Module, group: Group, bucket_cap_mb: float) -> None:
        super().__init__()
        self.module = module
        self.synchronize = True
        """False during micro-batches that only accumulate."""
        self.comm_timer = CommTimer(group)
        self._world_size = group.world_size
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)  # all start from rank 0's weights
        wanted = [p for p in module.parameters() if p.requires_grad]
        self.buckets = make_buckets(wanted, int(bucket_cap_mb * 2**20))
        self._next = 0  # buckets leave in this order on every rank, whatever order they fill in
        for bucket in self.buckets:
            for place, parameter in enumerate(bucket.parameters):
                on_gradient(parameter, self._hook(bucket, place))
        self.attach()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own. Buffers (running statistics) are rank 0's, as in torch's DDP."""
        if self.training and self.synchronize:
            for buffer in self.module.buffers():
                with self.comm_timer.waiting():
                    dist.broadcast(buffer, src=0)
        return self.module(*args, **kwargs)

    def _hook(self, bucket: Bucket, place: int) -> Any:
        def arrived(_: torch.Tensor) -> None:
            bucket.used.add(place)
            if not self.synchronize:
                return
            if place not in bucket.waiting:  # the first may be on its way already, so adding them up is too late
                raise RuntimeError(TWICE)
            bucket.waiting.remove(place)
            self._send_full_ones()

        return arrived

    def _send_full_ones(self, rest: bool = False) -> None:
        while self._next < len(self.buckets) and (rest or not self.buckets[self._next].waiting):
            bucket = self.buckets[self._next]
            bucket.mark()
            bucket.flat.div_(self._world_size)
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)
            self.comm_timer.track(bucket.work)
            self._next += 1

    def finish(self) -> None:
        """Sends what is left and waits for all.

        A parameter that some ranks did not use counts as zero there; one that no rank used has no gradient, as in torch's DDP.
        """
        with self.comm_timer.counting():
            self._send_full_ones(rest=True)
            with self.comm_timer.waiting():
                self._settle()
        for bucket in self.buckets:
            bucket.drop_unused()
        self.comm_timer.step_done()

    def _settle(self) -> None:
        """Nothing is in flight, and every bucket waits for all its gradients."""
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.work = None
            bucket.waiting = set(range(len(bucket.parameters)))
        self._next = 0

    def attach(self) -> None:
        """Zeroes the gradients in place: set to None they would be no views any more. Forgets a backward that was broken off."""
        self._settle()
        for bucket in self.buckets:
            bucket.attach()

    # Checkpoints hold the plain module, so that any strategy can read them.

    def portable_state_dict(self) -> dict[str, Any]:
        """The module's state without this wrapper."""
        return get_model_state_dict(self.module)

    def load_portable_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        set_model_state_dict(self.module, state)

    def portable_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state by the module's own parameter names."""
        if optimizer.state:
            return get_optimizer_state_dict(self.module, optimizer)
        optimizer.zero_grad(set_to_none=True)  # torch makes a fresh optimizer's state only while there are no gradients
        state = get_optimizer_state_dict(self.module, optimizer)
        self.attach()
        return state

    def load_portable_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """The inverse."""
        set_optimizer_state_dict(self.module, optimizer, state)
        self.attach()


class DdpScratch:
    """The strategy `ddp_scratch`."""

    name = "ddp_scratch"

    def __init__(self, config: DdpScratchConfig | None = None) -> None:
        self.config = config or DdpScratchConfig()

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """See Strategy."""
        return ScratchDdpModel(model.to(group.device), group, self.config.bucket_cap_mb)

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """See Strategy."""
        assert isinstance(model, ScratchDdpModel)
        model.synchronize = last
        try:
            with model.comm_timer.counting():
                yield
        finally:
            model.synchronize = True

    def finish(self, model: nn.Module) -> None:
        """See Strategy."""
        assert isinstance(model, ScratchDdpModel)
        model.finish()

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """See Strategy."""
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """See Strategy."""
        assert isinstance(model, ScratchDdpModel)
        return model.comm_timer.pop_stats()

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See Strategy."""
        assert isinstance(model, ScratchDdpModel)
        model.attach()
