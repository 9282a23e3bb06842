"""Fully sharded data parallelism from torch.distributed primitives, to be read. Equal to torch's fully_shard in result.

Each rank owns 1/world of every parameter, of its gradient and of the optimizer's state. A unit (one block of the model)
has whole weights only while it computes:

    forward of unit i:   all-gather its weights (i+1's are already on the way), compute, free them
    backward of unit i:  all-gather again (i-1's are already on the way), compute its gradients,
                         reduce-scatter them to their owners, free both
    optimizer:           steps on the shards; nobody ever has more than its part

A unit's parameters lie end to end in one flat buffer, padded so that it divides by the world. The module's parameters
are views into it for good; "freeing" gives the buffer's memory back and leaves the views in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.comm.buckets import on_gradient, views_of
from dtj_trainer.comm.group import Group
from dtj_trainer.strategies.base import blocks
from dtj_trainer.telemetry.meter import Communication

Tree = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class FsdpScratchConfig:
    """Options of `fsdp_scratch`."""

    cpu_offload: bool = False
    """Shards, gradients and optimizer state live in host memory; only whole weights are on the device."""


class Unit:
    """Parameters that are gathered and freed together."""

    def __init__(self, names: list[str], parameters: list[nn.Parameter], group: Group, *, offload: bool) -> None:
        self.names, self.parameters = names, parameters
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
        self.waiting = 0
        """Gradients that are still to come in this backward."""
        self._gathering: dist.Work | None = None
        self._scattering: tuple[dist.Work, torch.Tensor] | None = None
        self._whole = True
        self._world_size = group.world_size

    def gather(self) -> None:
        """Starts to fetch the whole weights, unless they are here or on the way."""
        if self._whole or self._gathering is not None:
            return
        self.full.untyped_storage().resize_(self.padded * self.full.element_size())
        mine = self.shard.detach().to(self.full.device)
        self._gathering = dist.all_gather_single(self.full, mine, async_op=True)

    def wait(self) -> None:
        """The whole weights are here."""
        self.gather()
        if self._gathering is not None:
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
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.full)
            for parameter, view in zip(self.parameters, views_of(self.gradient, self.parameters), strict=True):
                parameter.grad = view
        self.waiting = sum(p.requires_grad for p in self.parameters)

    def scatter(self) -> None:
        """Starts to send each part of the gradient to its owner, added up over the ranks."""
        if self.gradient is None or self._scattering is not None:
            return
        self.gradient.div_(self._world_size)
        mine = torch.empty(self.padded // self._world_size, dtype=self.full.dtype, device=self.full.device)
        work = dist.reduce_scatter_single(mine, self.gradient, async_op=True)
        if work is None:
            raise RuntimeError("reduce_scatter(async_op=True) gave no handle: this rank is not in the group")
        self._scattering = (work, mine)

    def end_backward(self) -> None:
        """This rank's part of the mean gradient is `shard.grad`."""
        self.scatter()
        if self._scattering is not None:
            work, mine = self._scattering
            work.wait()
            self.shard.grad = mine.to(self.shard.device)
        self._scattering = self.gradient = None
        for parameter in self.parameters:
            parameter.grad = None

    def whole(self, part: torch.Tensor) -> dict[str, torch.Tensor]:
        """A tensor sharded like the weights (the weights, or a moment of the optimizer), whole and by parameter name."""
        flat = torch.empty(self.padded, dtype=part.dtype, device=self.full.device)
        dist.all_gather_single(flat, part.detach().to(self.full.device))
        return dict(zip(self.names, views_of(flat, self.parameters), strict=True))

    def part(self, whole: Tree, rank: int) -> torch.Tensor:
        """The inverse: this rank's part of tensors by parameter name."""
        flat = torch.zeros(self.padded, dtype=whole[self.names[0]].dtype, device=self.full.device)
        for name, view in zip(self.names, views_of(flat, self.parameters), strict=True):
            view.copy_(whole[name])
        return flat.chunk(self._world_size)[rank].to(self.shard.device)


class ScratchFsdpModel(nn.Module):
    """A module in units. Its `parameters()` are the shards: that is what an optimizer gets."""

    def __init__(self, module: nn.Module, group: Group, *, offload: bool) -> None:
        super().__init__()
        self.inner = (module,)  # in a tuple, so that its parameters are not ours
        self.synchronize = True
        self._rank = group.rank
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
        names = {id(p): n for n, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        self._aliases = {n: names[id(p)] for n, p in every if n != names[id(p)]}  # shared weights have several names
        taken: set[int] = set()
        self.units: list[Unit] = []
        for place in [*blocks(module), module]:  # what is in no block is the root's unit, whole from forward to backward's end
            own = [p for p in place.parameters() if id(p) not in taken]
            if own:
                taken |= {id(p) for p in own}
                unit = Unit([names[id(p)] for p in own], own, group, offload=offload)
                self.units.append(unit)
                self._install(place, unit, is_root=place is module)
        self.shards = nn.ParameterList([u.shard for u in self.units])

    def _install(self, place: nn.Module, unit: Unit, *, is_root: bool) -> None:
        number = self.units.index(unit)

        def before_forward(*_: Any) -> None:
            unit.wait()
            self._fetch(number + 1)

        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    # Its gradient comes just before the unit's own backward.
                    tensor.register_hook(before_backward)  # type: ignore[no-untyped-call]
                    break
            in_backward = torch._C._current_graph_task_id() != -1  # recomputation of activations
            if not is_root and not in_backward:
                unit.free()

        def before_backward(_: torch.Tensor) -> None:
            unit.wait()
            unit.begin_backward()
            self._fetch(number - 1)

        def arrived(_: torch.Tensor) -> None:
            unit.waiting -= 1
            if unit.waiting == 0:
                if self.synchronize:
                    unit.scatter()
                if not is_root:
                    unit.free()

        place.register_forward_pre_hook(before_forward)
        place.register_forward_hook(after_forward)
        for parameter in unit.parameters:
            on_gradient(parameter, arrived)

    def _fetch(self, number: int) -> None:
        if 0 <= number < len(self.units):
            self.units[number].gather()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.inner[0](*args, **kwargs)

    def train(self, mode: bool = True) -> ScratchFsdpModel:
        """Passes the mode on to the module, which is not registered here."""
        super().train(mode)
        self.inner[0].train(mode)
        return self

    def finish(self) -> None:
        """All gradients are with their owners; no unit is whole."""
        for unit in self.units:
            unit.end_backward()
            unit.free()

    # Checkpoints hold whole tensors by the module's own names, so that any strategy and any world size can read them.

    def portable_state_dict(self) -> Tree:
        """Whole parameters and buffers; a collective."""
        state: Tree = {}
        for unit in self.units:
            state |= unit.whole(unit.shard)
        return state | {alias: state[name] for alias, name in self._aliases.items()} | dict(self.inner[0].named_buffers())

    def load_portable_state_dict(self, state: Tree) -> None:
        """The inverse: each rank keeps its part."""
        with torch.no_grad():
            for unit in self.units:
                unit.free()
                unit.shard.copy_(unit.part(state, self._rank))
            for name, buffer in self.inner[0].named_buffers():
                buffer.copy_(state[name])

    def portable_optimizer_state(self, optimizer: Optimizer) -> Tree:
        """The optimizer's state as torch's get_optimizer_state_dict gives it for an unsharded model; a collective."""
        state: Tree = {}
        for unit in self.units:
            for key, value in _initialized(optimizer, unit.shard).items():
                sharded = value.shape == unit.shard.shape
                whole = unit.whole(value) if sharded else {name: value.clone() for name in unit.names}
                for name, tensor in whole.items():
                    state.setdefault(name, {})[key] = tensor
        names = [name for unit in self.units for name in unit.names]
        options = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        return {"state": state, "param_groups": [{"params": names} | options]}

    def load_portable_optimizer_state(self, optimizer: Optimizer, tree: Tree) -> None:
        """The inverse."""
        for unit in self.units:
            own = _initialized(optimizer, unit.shard)
            for key, value in own.items():
                by_name = {name: tree["state"][name][key] for name in unit.names}
                value.copy_(unit.part(by_name, self._rank) if value.shape == unit.shard.shape else by_name[unit.names[0]])
        options = {k: v for k, v in tree["param_groups"][0].items() if k != "params"}
        optimizer.param_groups[0].update(options)


def _initialized(optimizer: Optimizer, shard: nn.Parameter) -> dict[str, torch.Tensor]:
    """The tensors of one parameter's state; a fresh optimizer makes them in a step that changes nothing."""
    if shard not in optimizer.state:
        rates = [g["lr"] for g in optimizer.param_groups]
        for g in optimizer.param_groups:
            g["lr"] = 0.0
            for p in g["params"]:
                p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for g, lr in zip(optimizer.param_groups, rates, strict=True):
            g["lr"] = lr
        for state in optimizer.state.values():
            if "step" in state:
                state["step"].zero_()
    return {k: v for k, v in optimizer.state[shard].items() if isinstance(v, torch.Tensor)}


class FsdpScratch:
    """The strategy `fsdp_scratch`."""

    name = "fsdp_scratch"

    def __init__(self, config: FsdpScratchConfig | None = None) -> None:
        self.config = config or FsdpScratchConfig()

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """See Strategy."""
        return ScratchFsdpModel(model.to(group.device), group, offload=self.config.cpu_offload)

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """See Strategy. Until the last one, whole gradients stay on each rank."""
        assert isinstance(model, ScratchFsdpModel)
        model.synchronize = last
        try:
            yield
        finally:
            model.synchronize = True

    def finish(self, model: nn.Module) -> None:
        """See Strategy."""
        assert isinstance(model, ScratchFsdpModel)
        model.finish()

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """See Strategy. The norm over the whole model is the root of all ranks' squares added up."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        square = torch.stack([g.double().square().sum() for g in gradients]).sum()
        dist.all_reduce(square)
        norm = square.sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def communication(self, model: nn.Module) -> Communication | None:
        """Not measured: see a profile."""
        return None

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See Strategy."""
        optimizer.zero_grad(set_to_none=True)
