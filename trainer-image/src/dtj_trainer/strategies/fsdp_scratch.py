"""Fully sharded data parallelism from torch.distributed primitives, to be read. Equal to torch's fully_shard in result.

Each rank owns 1/world of every parameter, of its gradient and of the optimizer's state. A unit (one block of the model)
has whole weights only while it computes:

    forward of unit i:   all-gather its weights (i+1's are already on the way), compute, free them
    backward of unit i:  all-gather again (i-1's are already on the way), compute its gradients,
                         reduce-scatter them to their owners, free both
    optimizer:           steps on the shards; nobody ever has more than its part

What a unit is stands in comm/units.py; here is when each is fetched, freed and scattered, by hooks on modules and gradients.
What is not trained has neither gradient nor optimizer state, the bulk of what sharding saves: it stays whole on each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.optim import Optimizer

from dtj_trainer.comm.buckets import on_gradient
from dtj_trainer.comm.clock import Clock, Communication
from dtj_trainer.comm.group import Group
from dtj_trainer.comm.units import Tree, Unit
from dtj_trainer.strategies.base import blocks
from dtj_trainer.torch_private import in_backward


@dataclass(kw_only=True, slots=True)
class FsdpScratchConfig:
    """Options of `fsdp_scratch`."""

    cpu_offload: bool = False
    """Shards, gradients and optimizer state live in host memory; only whole weights are on the device."""


class ScratchFsdpModel(nn.Module):
    """A module in units. Its `parameters()` are the shards: that is what an optimizer gets."""

    def __init__(self, module: nn.Module, group: Group, *, offload: bool) -> None:
        super().__init__()
        self.inner = (module,)  # in a tuple, so that its parameters are not ours
        self.synchronize = True
        self.clock = Clock(group)
        frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        saved = module.state_dict().keys()  # buffers that are not persistent are in no checkpoint
        self._kept = frozen | {n: b for n, b in module.named_buffers() if n in saved}
        for tensor in (*frozen.values(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        names = {id(p): n for n, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        self._aliases = {n: names[id(p)] for n, p in every if n != names[id(p)]}  # shared weights have several names
        used, taken = _uses(module), set[int]()
        self._stages: list[list[Unit]] = []
        for place in [*blocks(module), module]:  # what is in no block is the root's, whole from forward to backward's end
            # Weights that another part uses too must be there when it does: they are the root's as well.
            here = _uses(place)
            own = [p for p in place.parameters() if p.requires_grad and id(p) not in taken and used[id(p)] == here[id(p)]]
            taken |= {id(p) for p in own}
            stage = []
            for dtype in dict.fromkeys(p.dtype for p in own):
                parameters = [p for p in own if p.dtype == dtype]
                stage.append(Unit([names[id(p)] for p in parameters], parameters, group, self.clock, offload=offload))
            if stage:
                self._stages.append(stage)
                self._install(place, len(self._stages) - 1, is_root=place is module)
        self.units = [unit for stage in self._stages for unit in stage]
        self.shards = nn.ParameterList([u.shard for u in self.units])
        self._sent: Unit | None = None  # its gradients are on their way to their owners

    def _install(self, place: nn.Module, number: int, *, is_root: bool) -> None:
        stage = self._stages[number]

        def before_forward(*_: Any) -> None:
            for unit in stage:
                unit.wait()
            if not in_backward():
                self._fetch((number + 1) % len(self._stages))  # after the root's, which comes first, the first block's

        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            # The gradient of an output comes just before the unit's own backward; which of several comes first, nobody knows.
            if outputs := [t for t in _tensors(output) if t.requires_grad]:
                register_multi_grad_hook(outputs, before_backward, mode="any")
            if not is_root and not in_backward():
                for unit in stage:
                    unit.free()

        def before_backward(_: torch.Tensor) -> None:
            for unit in stage:
                unit.wait()
                unit.begin_backward()
            if number:
                self._fetch(number - 1)

        def arrived(unit: Unit, _: torch.Tensor) -> None:
            unit.waiting -= 1
            if unit.waiting == 0:
                if self.synchronize:
                    self._send(unit)
                if not is_root:
                    unit.free()

        place.register_forward_pre_hook(before_forward)
        place.register_forward_hook(after_forward)
        for unit in stage:
            for parameter in unit.parameters:
                on_gradient(parameter, partial(arrived, unit))

    def _send(self, unit: Unit) -> None:
        """Whole gradients of two units at most are in memory: those under way, and those that are computed meanwhile."""
        unit.scatter()
        before, self._sent = self._sent, unit
        if before is not None and before is not unit:
            before.end_backward()

    def _fetch(self, number: int) -> None:
        for unit in self._stages[number]:
            unit.gather()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.inner[0](*args, **kwargs)

    def train(self, mode: bool = True) -> ScratchFsdpModel:
        """Passes the mode on to the module, which is not registered here."""
        super().train(mode)
        self.inner[0].train(mode)
        return self

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The module's own."""
        return self.inner[0].named_buffers(*args, **kwargs)

    def finish(self) -> None:
        """All gradients are with their owners; no unit is whole."""
        self._sent = None
        with self.clock.counting():
            for unit in self.units:
                unit.end_backward()
                unit.free()
        self.clock.step_done()

    def forget_backward(self) -> None:
        """Nothing is left of a backward that was broken off."""
        self._sent = None
        for unit in self.units:
            unit.forget_backward()

    # Checkpoints hold parts of tensors by the module's own names, so that any strategy and any world size can read them, and
    # nothing is gathered for one.

    def portable_state_dict(self) -> Tree:
        """This rank's parts of the parameters, and buffers."""
        state: Tree = {}
        for unit in self.units:
            state |= unit.parts(unit.shard)
        state |= {name: tensor.detach() for name, tensor in self._kept.items()}
        return state | {alias: state[name] for alias, name in self._aliases.items()}

    def load_portable_state_dict(self, state: Tree) -> None:
        """The inverse: each rank keeps its part."""
        with torch.no_grad():
            for unit in self.units:
                unit.free()
                unit.take(unit.shard.detach(), state)
            for name, tensor in self._kept.items():
                tensor.copy_(state[name])

    def portable_optimizer_state(self, optimizer: Optimizer) -> Tree:
        """The optimizer's state as torch's get_optimizer_state_dict gives it for an unsharded model, in parts."""
        state: Tree = {}
        groups = []
        for group, units in self._groups(optimizer):
            for unit in units:
                for key, value in _initialized(optimizer, unit.shard).items():
                    sharded = value.shape == unit.shard.shape
                    own = unit.parts(value) if sharded else {name: value.clone() for name in unit.names}
                    for name, tensor in own.items():
                        state.setdefault(name, {})[key] = tensor
            options = {k: v for k, v in group.items() if k != "params"}
            groups.append({"params": [name for unit in units for name in unit.names]} | options)
        return {"state": state, "param_groups": groups}

    def load_portable_optimizer_state(self, optimizer: Optimizer, tree: Tree) -> None:
        """The inverse."""
        for group, units in self._groups(optimizer):
            for unit in units:
                for key, value in _initialized(optimizer, unit.shard).items():
                    saved = {name: tree["state"][name][key] for name in unit.names}
                    if value.shape == unit.shard.shape:
                        unit.take(value, saved)
                    else:
                        value.copy_(torch.stack(list(saved.values())).amax(0))  # steps: 0 of one that has had no gradient
            options = next(g for g in tree["param_groups"] if units[0].names[0] in g["params"])
            group.update({k: v for k, v in options.items() if k != "params"})

    def _groups(self, optimizer: Optimizer) -> list[tuple[dict[str, Any], list[Unit]]]:
        """The optimizer's groups, each with its units."""
        by_shard = {id(unit.shard): unit for unit in self.units}
        return [(group, [by_shard[id(p)] for p in group["params"]]) for group in optimizer.param_groups]


def _uses(module: nn.Module) -> Counter[int]:
    """How many of a module's parts hold a parameter of their own, by its id."""
    return Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))


def _tensors(output: Any) -> list[torch.Tensor]:
    """The tensors in a forward's output: nested tuples, lists, dicts, dataclasses."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        inside = list(output.values())
    elif isinstance(output, (tuple, list)):
        inside = list(output)
    else:
        inside = [getattr(output, f.name) for f in fields(output)] if is_dataclass(output) else []
    return [t for value in inside for t in _tensors(value)]


def _initialized(optimizer: Optimizer, shard: nn.Parameter) -> dict[str, torch.Tensor]:
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
            with model.clock.counting():
                yield
        finally:
            model.synchronize = True

    def finish(self, model: nn.Module) -> None:
        """See Strategy."""
        assert isinstance(model, ScratchFsdpModel)
        model.finish()

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """See Strategy. The norm over the whole model is the root of all ranks' squares added up."""
        assert isinstance(model, ScratchFsdpModel)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        square = torch.stack([g.double().square().sum() for g in gradients]).sum()
        with model.clock.counting(), model.clock.waiting():
            dist.all_reduce(square)
        norm = square.sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def communication(self, model: nn.Module) -> Communication | None:
        """See Strategy."""
        assert isinstance(model, ScratchFsdpModel)
        return model.clock.take()

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See Strategy."""
        assert isinstance(model, ScratchFsdpModel)
        model.forget_backward()
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
