"""ZeRO from torch.distributed primitives, written to be read: whole weights, sharded optimizer state.

Each rank holds the whole weights, as under data parallelism, and owns 1/world of them. The owner
alone keeps the optimizer's state for a part, and updates the part:

    backward:   reduce-scatter a bucket of gradients as soon as it is complete (ddp.py has the same
                buckets and all-reduces them)
    optimizer:  steps on the shards, which are views into the whole weights
    then:       all-gather every bucket of weights in place

A reduce-scatter and an all-gather move as many bytes as the one all-reduce of data parallelism.
Therefore `zero1` does not all-reduce its gradients: that would send half as much again, for parts
of the gradient that no update of this rank reads.

`zero1` keeps whole gradients in buffers that live as long as the model, and sends them in a step's
last micro-batch. `zero2` allocates a bucket when its first gradient comes, sends it in every
micro-batch and frees it, so that between micro-batches each rank has only its shard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj_trainer.distributed.comm_timer import CommTimer
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.scratch.buckets import bucketed
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup
from dtj_trainer.strategies.scratch.hooks import before_gradient, on_gradient
from dtj_trainer.strategies.scratch.reduce_queue import ReduceQueue
from dtj_trainer.strategies.scratch.sharded_model import ShardedModel

TWO_GRADIENTS = (
    "a parameter got two gradients in one backward, or two backwards in one micro-batch: call backward once inside "
    "each `accumulate`, and write torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or strategy fsdp_scratch"
)


class WholeParamGroup(FlatParamGroup):
    """A bucket of parameters that stay whole; this rank's shard is a view into them."""

    def __init__(
        self,
        names: list[str],
        parameters: list[nn.Parameter],
        group: Group,
        comm_timer: CommTimer,
        *,
        keep: bool,
        sent_dtype: torch.dtype | None,
    ) -> None:
        """Takes the parameters; `keep`: the buffer of gradients is never freed."""
        super().__init__(names, parameters, group, comm_timer, sent_dtype=sent_dtype)
        self.arrived = set[int]()
        """Indexes of the parameters whose gradients have come in this micro-batch."""
        self._kept = torch.zeros_like(self.full) if keep else None

    def _make_shard(self, own: torch.Tensor) -> nn.Parameter:
        return nn.Parameter(own)

    def free(self) -> None:
        """Frees nothing: the weights stay."""

    def shard_changes(self) -> None:
        """Notes that the other ranks' parts will be out of date, so that the next `wait` gathers them."""
        if self._gathering is not None:
            self.wait()
        self._whole = False

    def _room_for_own(self, gradient: torch.Tensor) -> torch.Tensor:
        # In place, as gloo and NCCL allow it: the buffer stays anyway.
        return super()._room_for_own(gradient) if self._kept is None else gradient.chunk(self._world_size)[self._rank]

    def _new_gradient(self) -> torch.Tensor:
        if self._kept is None:
            return super()._new_gradient()
        if self.shard.grad is not None:  # a view into the buffer, of an earlier backward of this step
            self.shard.grad = self.shard.grad.clone()
        return self._kept.zero_()

    def held(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns the tensors of weights, and those of gradients with the buffer that is kept for them."""
        weights, gradients = super().held()
        return weights, gradients if self._kept is None else [*gradients, self._kept]

    def prepare_rest(self) -> None:
        """Prepares the gradients that have come, or zeros, to be sent."""
        if self._scattering is not None:
            self.end_backward()
        if self.gradient is None:
            self.gradient = self._new_gradient()

    @property
    def complete(self) -> bool:
        """Whether all gradients of this micro-batch have come."""
        return len(self.arrived) == len(self.parameters)


class ZeroModel(ShardedModel):
    """A whole copy of a module on each rank. Its `parameters()` are the shards: an optimizer gets those."""

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        bucket_cap_mb: float,
        *,
        keep_gradients: bool,
        sent_dtype: torch.dtype | None = None,
    ) -> None:
        """Takes a module; `keep_gradients`: each rank keeps whole gradients (zero1)."""
        super().__init__(module, group)
        trained = [p for p in module.parameters() if p.requires_grad]
        self.buckets = [
            WholeParamGroup(
                [self.names[id(p)] for p in own],
                own,
                group,
                self.comm_timer,
                keep=keep_gradients,
                sent_dtype=sent_dtype,
            )
            for own in bucketed(trained, int(bucket_cap_mb * 2**20))
        ]
        self.set_groups([*self.buckets])
        self._queue = ReduceQueue(bounded=not keep_gradients)
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                before_gradient(parameter, self._coming(bucket))
                on_gradient(parameter, partial(self._arrived, bucket, index))
        self.begin_micro_batch()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. Buffers (running statistics) are rank 0's, as in torch's DDP."""
        self.gather_weights()
        if self.training and self.synchronize:
            for buffer in self.inner[0].buffers():
                with self.comm_timer.waiting():
                    dist.broadcast(buffer, src=0)
        return self.inner[0](*args, **kwargs)

    def gather_weights(self) -> None:
        """Gathers the weights, if a step or a load has changed the shards; all buckets are on their way at once."""
        for bucket in self.buckets:
            bucket.gather()
        for bucket in self.buckets:
            bucket.wait()

    def _coming(self, bucket: WholeParamGroup) -> Callable[[torch.Tensor], None]:
        def coming(_: torch.Tensor) -> None:
            # From the micro-batch before, the gradient may still be on its way.
            if bucket.gradient is None or not bucket.arrived:
                bucket.begin_backward()

        return coming

    def _arrived(self, bucket: WholeParamGroup, index: int, _: torch.Tensor) -> None:
        bucket.used.add(index)
        if not self.synchronize:
            return
        # The first gradient may be on its way already, so it is too late to add the second one.
        if index in bucket.arrived:
            raise RuntimeError(TWO_GRADIENTS)
        bucket.arrived.add(index)
        if bucket.complete:
            self._queue.add(bucket)

    def begin_micro_batch(self) -> None:
        """Expects every bucket, in the same order on every rank, whatever order they fill in."""
        self._queue.begin_backward(self.buckets)
        for bucket in self.buckets:
            bucket.arrived.clear()

    def send_rest(self) -> None:
        """Sends, after a backward, the buckets that lack a gradient: other ranks may have it."""
        for bucket in self.buckets:
            if bucket in self._queue.pending:
                bucket.prepare_rest()
                self._queue.add(bucket)

    def finish(self) -> None:
        """Sends the remaining buckets and waits for all.

        A bucket that no rank used has no gradient, so that the optimizer skips it.
        """
        with self.comm_timer.counting():
            self.send_rest()
            used = self.used_anywhere()
            for bucket in self.buckets:
                bucket.wait_scattered()
                if not used[bucket]:
                    bucket.shard.grad = None
        self._begin_step()
        self.comm_timer.step_done()

    def discard_gradients(self) -> None:
        """Gathers the weights that the optimizer has changed, and drops what is left of a backward."""
        self._begin_step()
        with self.comm_timer.counting():
            self.gather_weights()

    def _begin_step(self) -> None:
        for bucket in self.buckets:
            bucket.begin_step()
        self.begin_micro_batch()
