"""Data parallelism from torch.distributed primitives, written to be read.

Its results equal those of torch's DDP. Three ideas make it fast, and each is a few lines here:
- bucketing: gradients lie end to end in flat buffers, so a step is a few big all-reduces instead of
  many small ones;
- overlap: a hook on each parameter runs when its gradient is final, and a bucket that is full
  leaves at once, while backward still computes the gradients of earlier layers;
- no copies: the gradients are views into the buckets, so autograd adds into them and the collective
  works on them.
"""

from __future__ import annotations

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

from dtj_trainer.communication import CommunicationConfig, GradientQueue, make_queue
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.scratch.base import ScratchModel, ScratchStrategy
from dtj_trainer.strategies.scratch.buckets import Bucket, make_buckets
from dtj_trainer.strategies.scratch.hooks import on_gradient

TWO_GRADIENTS = (
    "a parameter got two gradients in one backward: a submodule is called twice and checkpointed reentrantly; "
    "write torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or strategy fsdp_scratch"
)


@dataclass(kw_only=True, slots=True)
class DdpScratchConfig:
    """Options of `ddp_scratch`."""

    bucket_cap_mb: float = 25.0

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ConfigError(f"strategy.bucket_cap_mb={self.bucket_cap_mb}: write megabytes above 0")


class ScratchDdpModel(ScratchModel):
    """A whole copy of a module on each rank, whose gradients lie in buckets."""

    def __init__(
        self, module: nn.Module, group: Group, bucket_cap_mb: float, queue: GradientQueue | None = None
    ) -> None:
        super().__init__(group)
        self._queue = queue
        if queue is not None:
            queue.count_waits(self.comm_timer.waiting)
        self.module = module
        self._world_size = group.world_size
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)  # all ranks start from rank 0's weights
        trained = [p for p in module.parameters() if p.requires_grad]
        self.buckets = make_buckets(trained, int(bucket_cap_mb * 2**20))
        # Buckets leave in this order on every rank, whatever order they fill in.
        self._next = 0
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                on_gradient(parameter, self._hook(bucket, index))
        self.attach()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. Buffers (running statistics) are rank 0's, as in torch's DDP."""
        if self.training and self.synchronize:
            for buffer in self.module.buffers():
                with self.comm_timer.waiting():
                    dist.broadcast(buffer, src=0)
        return self.module(*args, **kwargs)

    def _hook(self, bucket: Bucket, index: int) -> Any:
        def arrived(_: torch.Tensor) -> None:
            bucket.used.add(index)
            if not self.synchronize:
                return
            # The first gradient may be on its way already, so it is too late to add the second one.
            if index not in bucket.waiting:
                raise RuntimeError(TWO_GRADIENTS)
            bucket.waiting.remove(index)
            self._send_full_buckets()

        return arrived

    def _send_full_buckets(self, rest: bool = False) -> None:
        while self._next < len(self.buckets) and (rest or not self.buckets[self._next].waiting):
            bucket = self.buckets[self._next]
            bucket.mark()
            if self._queue is None:
                bucket.flat.div_(self._world_size)
                bucket.work = dist.all_reduce(bucket.flat, async_op=True)
            else:
                bucket.work = self._queue.put(bucket.parameters, bucket.views, bucket.flat, bucket.marks)
            if self._queue is None or not self._queue.defers:
                self.comm_timer.track(bucket.work)
            self._next += 1

    def finish(self) -> None:
        """Sends the remaining buckets and waits for all.

        A parameter that some ranks did not use counts as zero there. A parameter that no rank used
        has no gradient, as in torch's DDP.
        """
        with self.comm_timer.counting():
            self._send_full_buckets(rest=True)
            if self._queue is not None:
                self._queue.finish()
            with self.comm_timer.waiting():
                self._wait_for_buckets()
        for bucket in self.buckets:
            bucket.drop_unused()
        self.comm_timer.step_done()

    def _wait_for_buckets(self) -> None:
        """Waits until nothing is in flight; from then on every bucket waits for all its gradients."""
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.work = None
            bucket.waiting = set(range(len(bucket.parameters)))
        self._next = 0

    def attach(self) -> None:
        """Zeroes the gradients in place, and discards a backward that an exception ended.

        Gradients that were set to None would no longer be views into the buckets.
        """
        if self._queue is not None and self._queue.discard():
            for bucket in self.buckets:
                bucket.work = None
        self._wait_for_buckets()
        for bucket in self.buckets:
            bucket.attach()

    # Checkpoints hold the plain module, so that any strategy can read them.

    def portable_state_dict(self) -> dict[str, Any]:
        """Returns the module's state without this wrapper."""
        return get_model_state_dict(self.module)

    def load_portable_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `portable_state_dict` returned."""
        set_model_state_dict(self.module, state)

    def portable_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns the optimizer's state by the module's own parameter names."""
        if optimizer.state:
            return get_optimizer_state_dict(self.module, optimizer)
        # torch initializes a fresh optimizer's state only while there are no gradients.
        optimizer.zero_grad(set_to_none=True)
        state = get_optimizer_state_dict(self.module, optimizer)
        self.attach()
        return state

    def load_portable_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Loads what `portable_optimizer_state` returned."""
        set_optimizer_state_dict(self.module, optimizer, state)
        self.attach()


class DdpScratch(ScratchStrategy[ScratchDdpModel]):
    """The strategy `ddp_scratch`."""

    name = "ddp_scratch"

    def __init__(
        self, config: DdpScratchConfig | None = None, communication: CommunicationConfig | None = None
    ) -> None:
        self.config = config or DdpScratchConfig()
        self.communication = communication or CommunicationConfig()
        self.queue: GradientQueue | None = None

    def wrap(self, model: nn.Module, group: Group) -> ScratchDdpModel:
        """Moves the model to the group's device and buckets its gradients."""
        model = model.to(group.device)
        if not self.communication.is_plain:
            self.queue = make_queue(model, group, self.communication)
        return ScratchDdpModel(model, group, self.config.bucket_cap_mb, self.queue)

    def clip(self, model: ScratchDdpModel, max_norm: float) -> torch.Tensor:
        """Clips as torch does: every rank has all gradients."""
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def zero_grad(self, model: ScratchDdpModel, optimizer: Optimizer) -> None:
        """Zeroes the gradients in place."""
        model.attach()
