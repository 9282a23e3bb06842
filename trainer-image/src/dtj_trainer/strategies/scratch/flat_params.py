"""Parameters that lie end to end in one flat buffer, of which each rank owns a part: gathered to be whole, freed, scattered.

The buffer is padded so that it divides by the world. The module's parameters are views into it for good; "freeing" gives
the buffer's memory back and leaves the views in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommTimer
from dtj_trainer.distributed.flat_shard import FlatShard
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.scratch.buckets import views_of

StateDict = dict[str, Any]


class FlatParamGroup:
    """Parameters of one dtype that are gathered and freed together."""

    def __init__(
        self,
        names: list[str],
        parameters: list[nn.Parameter],
        group: Group,
        comm_timer: CommTimer,
        *,
        scatters: dist.ProcessGroup | None,
        offload: bool,
    ) -> None:
        """Takes the parameters from where they are, in host memory as a rule, and keeps this rank's part of them.

        `scatters`: the group for gradients. They leave in an order of their own, and so can't share one with the weights.
        """
        self.names, self.parameters, self.comm_timer = names, parameters, comm_timer
        size = sum(p.numel() for p in parameters)
        self.padded = -(-size // group.world_size) * group.world_size
        self.full = torch.zeros(self.padded, dtype=parameters[0].dtype, device=group.device)
        for parameter, view in zip(parameters, views_of(self.full, parameters), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        dist.broadcast(self.full, src=0)  # all start from rank 0's weights
        own = self.full.chunk(group.world_size)[group.rank].clone()
        self.shard = nn.Parameter(own.cpu() if offload else own)
        self.gradient: torch.Tensor | None = None
        self.used = set[int]()
        """Places of the parameters that got a gradient in this step, in any micro-batch."""
        self.sent = False
        """The gradient of this step has left."""
        self.waiting = 0
        """Gradients that are still to come in this backward."""
        self._gathering: dist.Work | None = None
        self._scattering: tuple[dist.Work, torch.Tensor] | None = None
        self._whole = True
        self._rank, self._world_size = group.rank, group.world_size
        self._scatters = scatters
        self.free()  # now, and not at the end of the first step: the next unit takes its memory

    def gather(self) -> None:
        """Starts to fetch the whole weights, unless they are here or on the way."""
        if self._whole or self._gathering is not None:
            return
        self.full.untyped_storage().resize_(self.padded * self.full.element_size())
        mine = self.shard.detach().to(self.full.device)
        self._gathering = dist.all_gather_single(self.full, mine, async_op=True)
        self.comm_timer.track(self._gathering)

    def wait(self) -> None:
        """The whole weights are here."""
        self.gather()
        if self._gathering is not None:
            with self.comm_timer.waiting():
                self._gathering.wait()
            self._gathering = None
        self._whole = True

    def free(self) -> None:
        """Gives the memory of the whole weights back."""
        if self._gathering is not None:  # fetched ahead and not used: the buffer is still being written
            self.wait()
        if self._whole:
            self.full.untyped_storage().resize_(0)
            self._whole = False

    def begin_backward(self) -> None:
        """Gradients will be added into one flat buffer, as views."""
        if self._scattering is not None:  # a block that is called twice, and computed again (reentrantly) for each call
            self.end_backward()
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.full)
            for parameter, view in zip(self.parameters, views_of(self.gradient, self.parameters), strict=True):
                parameter.grad = view
        self.waiting = len(self.parameters)

    def scatter(self) -> None:
        """Starts to send each part of the gradient to its owner, added up over the ranks."""
        if self.gradient is None or self._scattering is not None:
            return
        self.gradient.div_(self._world_size)
        mine = torch.empty(self.padded // self._world_size, dtype=self.full.dtype, device=self.full.device)
        work = dist.reduce_scatter_single(mine, self.gradient, group=self._scatters, async_op=True)
        if work is None:
            raise RuntimeError("reduce_scatter(async_op=True) gave no handle: this rank is not in the group")
        self._scattering, self.sent = (work, mine), True

    def end_backward(self) -> None:
        """This rank's part of the mean gradient is in `shard.grad`."""
        self.scatter()
        self.settle()
        self.forget_backward()

    def settle(self) -> None:
        """Waits for a gradient that is on its way. One that is being computed stays: it is of the next micro-batch."""
        if self._scattering is not None:
            work, mine = self._scattering
            with self.comm_timer.waiting():
                work.wait()
            mine = mine.to(self.shard.device)
            self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
            self.forget_backward()

    def join(self) -> None:
        """This rank has nothing to send and another one has: zeros."""
        if not self.sent and self.gradient is None:
            self.gradient = torch.zeros(self.padded, dtype=self.full.dtype, device=self.full.device)

    def forget_backward(self) -> None:
        """Nothing is left of a backward, be it one that was broken off."""
        if self._scattering is not None:
            self._scattering[0].wait()
        self._scattering = self.gradient = None
        for parameter in self.parameters:
            parameter.grad = None

    def parts(self, mine: torch.Tensor) -> dict[str, FlatShard | torch.Tensor]:
        """What this rank has of each parameter in a tensor sharded like the weights (those, or a moment of the optimizer)."""
        out: dict[str, FlatShard | torch.Tensor] = {}
        begin, end = self._rank * mine.numel(), (self._rank + 1) * mine.numel()
        at = 0  # of the parameter in the buffer
        for name, parameter in zip(self.names, self.parameters, strict=True):
            start, stop = max(at, begin), min(at + parameter.numel(), end)
            flat = mine.detach()[start - begin : max(start, stop) - begin]
            shape = tuple(parameter.shape)
            out[name] = FlatShard(flat, start - at, shape) if parameter.numel() else torch.empty(shape, dtype=mine.dtype)
            at += parameter.numel()
        return out

    def take(self, mine: torch.Tensor, saved: StateDict) -> None:
        """The inverse: into `mine` what is in parts like these."""
        for name, part in self.parts(mine).items():
            if isinstance(part, FlatShard):
                part.flat.copy_(saved[name].flat)


def initialized(optimizer: Optimizer, shard: nn.Parameter) -> dict[str, torch.Tensor]:
    """The tensors of one parameter's state; what has none yet gets zeros, by a step that changes nothing else."""
    if shard not in optimizer.state:
        fresh = [p for g in optimizer.param_groups for p in g["params"] if p not in optimizer.state]
        rates = [g["lr"] for g in optimizer.param_groups]
        optimizer.zero_grad(set_to_none=True)
        for p in fresh:
            p.grad = torch.zeros_like(p)
        for g in optimizer.param_groups:
            g["lr"] = 0.0
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for g, lr in zip(optimizer.param_groups, rates, strict=True):
            g["lr"] = lr
        for p in fresh:
            for value in optimizer.state[p].values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    return {k: v for k, v in optimizer.state[shard].items() if isinstance(v, torch.Tensor)}
