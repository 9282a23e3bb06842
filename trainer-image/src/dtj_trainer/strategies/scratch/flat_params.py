"""Parameters in one flat buffer, of which each rank owns a shard: gathered, freed and reduced together.

The buffer is padded so that its size is a multiple of the world size. The module's parameters are
views into the buffer for good; "freeing" gives the buffer's memory back and leaves the views in
place.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from dtj_trainer.distributed.comm_timer import CommTimer
from dtj_trainer.distributed.flat_shard import FlatShard, StateDict
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.cpu_offload import Offload, to_host
from dtj_trainer.strategies.scratch.buckets import split_views


class FlatParamGroup:
    """Parameters of one dtype that are gathered and freed together."""

    def __init__(
        self,
        names: list[str],
        parameters: list[nn.Parameter],
        group: Group,
        comm_timer: CommTimer,
        *,
        reduce_group: dist.ProcessGroup | None = None,
        offload: Offload = "none",
        sent_dtype: torch.dtype | None = None,
    ) -> None:
        """Takes the parameters from where they are, and keeps this rank's shard of them.

        The parameters are usually in host memory. Gradients use `reduce_group` (None: the group of the
        weights): if they leave in an order of their own, they can't share a process group with the weights.
        Gradients are sent, and added up, as `sent_dtype` (None: as they are).
        """
        self.names, self.parameters, self.comm_timer = names, parameters, comm_timer
        size = sum(p.numel() for p in parameters)
        self.padded = -(-size // group.world_size) * group.world_size
        self.full = torch.zeros(self.padded, dtype=parameters[0].dtype, device=group.device)
        for parameter, view in zip(parameters, split_views(self.full, parameters), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        dist.broadcast(self.full, src=0)  # all ranks start from rank 0's weights
        self._offload: Offload = offload
        own = self.full.chunk(group.world_size)[group.rank]
        self.shard = self._make_shard(own)
        self._on_device = own.clone() if offload == "optimizer" else None
        """The shard that is gathered, where the optimizer's own is in host memory."""
        self._on_device_is_old = False
        self._gradient_on_device: torch.Tensor | None = None
        """The gradient of the shard, of the micro-batches so far."""
        self.gradient: torch.Tensor | None = None
        self.used = set[int]()
        """Indexes of the parameters that got a gradient in this step, in any micro-batch."""
        self.sent = False
        """Whether the gradient of this step has left."""
        self.waiting = 0
        """Gradients that are still to come in this backward."""
        self._gathering: dist.Work | None = None
        self._scattering: tuple[dist.Work, torch.Tensor, torch.Tensor] | None = None
        """The collective that is on its way, this rank's part of it, and its input."""
        self._sent_dtype = None if sent_dtype == self.full.dtype else sent_dtype
        self._whole = True
        self._rank, self._world_size = group.rank, group.world_size
        self._reduce_group = reduce_group
        # Free now, and not at the end of the first step: the next group takes the memory.
        self.free()

    def _make_shard(self, own: torch.Tensor) -> nn.Parameter:
        """Returns the parameter that the optimizer gets; `own` is this rank's part of the whole weights."""
        return nn.Parameter(own.clone() if self._offload == "none" else to_host(own))

    def gather(self) -> None:
        """Starts to gather the whole weights, unless they are here or on the way."""
        if self._whole or self._gathering is not None:
            return
        self.full.untyped_storage().resize_(self.padded * self.full.element_size())
        if self._on_device is None:
            mine = self.shard.detach().to(self.full.device, non_blocking=True)
        else:
            mine = self._on_device
            if self._on_device_is_old:
                mine.copy_(self.shard.detach(), non_blocking=True)
                self._on_device_is_old = False
        self._gathering = dist.all_gather_single(self.full, mine, async_op=True)
        self.comm_timer.track(self._gathering)

    def wait(self) -> None:
        """Waits until the whole weights are here."""
        self.gather()
        if self._gathering is not None:
            with self.comm_timer.waiting():
                self._gathering.wait()
            self._gathering = None
        self._whole = True

    def free(self) -> None:
        """Gives the memory of the whole weights back."""
        # Weights that were prefetched and not used are still being written into the buffer.
        if self._gathering is not None:
            self.wait()
        if self._whole:
            self.full.untyped_storage().resize_(0)
            self._whole = False

    def shard_changes(self) -> None:
        """Drops what was gathered or copied from the shard, because a step or a load changes the shard."""
        self.free()
        self._on_device_is_old = True

    def begin_step(self) -> None:
        """Drops all gradients, also those of a step that an exception ended, and what was gathered before."""
        self.discard_gradients()
        self._gradient_on_device = None
        self.sent = False
        self.used.clear()
        self.shard_changes()

    def begin_backward(self) -> None:
        """Makes the parameters' gradients views into one flat buffer, into which autograd adds."""
        # A block that is called twice is recomputed (reentrantly) for each call.
        if self._scattering is not None:
            self.end_backward()
        if self.gradient is None:
            self.gradient = self._new_gradient()
            for parameter, view in zip(self.parameters, split_views(self.gradient, self.parameters), strict=True):
                parameter.grad = view
        self.waiting = len(self.parameters)

    def _room_for_own(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns where this rank's part of the mean of `gradient` goes."""
        return gradient.new_empty(self.padded // self._world_size)

    def _new_gradient(self) -> torch.Tensor:
        return torch.zeros(self.padded, dtype=self.full.dtype, device=self.full.device)

    def scatter(self) -> None:
        """Starts to send each shard of the gradient to its owner, added up over the ranks."""
        if self.gradient is None or self._scattering is not None:
            return
        self.gradient.div_(self._world_size)
        if self._sent_dtype is None:
            sent, mine = self.gradient, self._room_for_own(self.gradient)
        else:
            sent = self.gradient.to(self._sent_dtype)
            mine = sent.new_empty(self.padded // self._world_size)
        work = dist.reduce_scatter_single(mine, sent, group=self._reduce_group, async_op=True)
        if work is None:
            raise RuntimeError("reduce_scatter(async_op=True) returned no handle: this rank is not in the group")
        self._scattering, self.sent = (work, mine, sent), True

    def end_backward(self) -> None:
        """Puts this rank's shard of the mean gradient into `shard.grad`."""
        self.scatter()
        self.wait_scattered()
        self.discard_gradients()

    def wait_scattered(self) -> None:
        """Waits for a gradient that is on its way.

        A gradient that is being computed stays: it belongs to the next micro-batch.
        """
        if self._scattering is not None:
            work, mine, _ = self._scattering
            with self.comm_timer.waiting():
                work.wait()
            self._keep(mine.to(self.full.dtype))
            self.discard_gradients()

    def has_scattered(self, seconds: float) -> bool:
        """Waits as `wait_scattered` does. Returns False if a gradient in host memory is on its way for longer."""
        if self._scattering is not None and not self.full.is_cuda:
            # Gloo's reduce-scatter is not completed before it is waited for, and takes no timeout.
            waits = threading.Thread(target=self._scattering[0].wait, daemon=True)
            with self.comm_timer.waiting():
                waits.start()
                waits.join(seconds)
            if waits.is_alive():
                return False
        self.wait_scattered()
        return True

    def _keep(self, mine: torch.Tensor) -> None:
        """Adds the gradient of one micro-batch to that of the step."""
        if self._offload == "optimizer":
            before = self._gradient_on_device
            self._gradient_on_device = mine if before is None else before + mine
        elif self._offload == "all":
            # The copy of an earlier micro-batch has arrived when this one, which blocks, returns.
            self.shard.grad = to_host(mine) if self.shard.grad is None else self.shard.grad + mine.cpu()
        else:
            self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine

    def deliver_gradient(self) -> None:
        """Moves the step's gradient to where the optimizer is. The copy may still be under way (`wait_for_host`)."""
        if self._gradient_on_device is not None:
            self.shard.grad, self._gradient_on_device = to_host(self._gradient_on_device), None

    def contribute_zeros(self) -> None:
        """Prepares a gradient of zeros if this rank has none to send: another rank has one."""
        if self._scattering is not None:
            self.end_backward()  # that of an earlier micro-batch
        if self.gradient is None:
            self.gradient = self._new_gradient()

    def leave_out(self) -> None:
        """Drops the gradient of the step, which is zero on all ranks, so that the optimizer skips it."""
        self.wait_scattered()
        self.discard_gradients()
        self.shard.grad = self._gradient_on_device = None

    def discard_gradients(self) -> None:
        """Drops all that is left of a backward, also of one that an exception ended."""
        if self._scattering is not None:
            self._scattering[0].wait()
        self._scattering = self.gradient = None
        for parameter in self.parameters:
            parameter.grad = None

    def held(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns the tensors that the group holds now: those of weights, and those of gradients."""
        weights = [self.full, self.shard.detach(), self._on_device]
        gradients = [self.gradient, self.shard.grad, self._gradient_on_device]
        return [t for t in weights if t is not None], [t for t in gradients if t is not None]

    def flat_shards(self, mine: torch.Tensor) -> dict[str, FlatShard | torch.Tensor]:
        """Returns this rank's shard of each parameter as it lies in `mine`.

        `mine` is sharded like the weights: the weights themselves, or a moment of the optimizer.
        """
        out: dict[str, FlatShard | torch.Tensor] = {}
        begin, end = self._rank * mine.numel(), (self._rank + 1) * mine.numel()
        at = 0  # of the parameter in the buffer
        for name, parameter in zip(self.names, self.parameters, strict=True):
            start, stop = max(at, begin), min(at + parameter.numel(), end)
            flat = mine.detach()[start - begin : max(start, stop) - begin]
            shape = tuple(parameter.shape)
            empty = not parameter.numel()
            out[name] = torch.empty(shape, dtype=mine.dtype) if empty else FlatShard(flat, start - at, shape)
            at += parameter.numel()
        return out

    def load_flat_shards(self, mine: torch.Tensor, saved: StateDict) -> None:
        """Copies shards such as `flat_shards` returns into `mine`."""
        for name, shard in self.flat_shards(mine).items():
            if isinstance(shard, FlatShard):
                shard.flat.copy_(saved[name].flat)


def parameters_by_module(
    module: nn.Module, blocks: Sequence[nn.Module]
) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yields each block, and `module` last, with the trained parameters that are gathered for it.

    The root (`module`) gathers the parameters outside all blocks, and the weights that two submodules share,
    because they must be there when either of them computes.
    """
    uses, taken = _uses(module), set[int]()
    for place in [*blocks, module]:
        here = _uses(place)
        own = [p for p in place.parameters() if p.requires_grad and id(p) not in taken and uses[id(p)] == here[id(p)]]
        taken |= {id(p) for p in own}
        yield place, own


def _uses(module: nn.Module) -> Counter[int]:
    """Returns how many submodules hold a parameter as their own, by its id."""
    return Counter(id(p) for submodule in module.modules() for p in submodule.parameters(recurse=False))
