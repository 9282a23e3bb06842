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

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats, CommTimer
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.blocks import blocks
from dtj_trainer.strategies.initial_weights import move_unsharded, new_world_group
from dtj_trainer.strategies.scratch.buckets import on_gradient
from dtj_trainer.strategies.scratch.call_order import CallOrder
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup, StateDict, initialized
from dtj_trainer.torch_private import in_backward

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class FsdpScratchConfig:
    """Options of `fsdp_scratch`."""

    cpu_offload: bool = False
    """Shards, gradients and optimizer state live in host memory; only whole weights are on the device."""
    reduce_every_micro_batch: bool = False
    """As of fsdp: gradients are sent more often, and never kept whole."""


class ScratchFsdpModel(nn.Module):
    """A module in units. Its `parameters()` are the shards: that is what an optimizer gets."""

    def __init__(self, module: nn.Module, group: Group, parts: list[nn.Module], *, offload: bool) -> None:
        super().__init__()
        self.inner = (module,)  # in a tuple, so that its parameters are not ours
        self.synchronize = True
        self.comm_timer = CommTimer(group)
        self.units: list[FlatParamGroup] = []
        self._group = group
        move_unsharded(module, group.device)
        frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        saved = module.state_dict().keys()  # buffers that are not persistent are in no checkpoint
        self._kept = frozen | {n: b for n, b in module.named_buffers() if n in saved}
        for tensor in (*frozen.values(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        names = {id(p): n for n, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        self._aliases = {n: names[id(p)] for n, p in every if n != names[id(p)]}  # shared weights have several names
        used, taken = _uses(module), set[int]()
        self._stages: list[list[FlatParamGroup]] = []
        scatters = new_world_group()
        for place in [*parts, module]:  # what is in no block is the root's, whole from forward to backward's end
            # Weights that another part uses too must be there when it does: they are the root's as well.
            here = _uses(place)
            own = [p for p in place.parameters() if p.requires_grad and id(p) not in taken and used[id(p)] == here[id(p)]]
            taken |= {id(p) for p in own}
            stage = []
            for dtype in dict.fromkeys(p.dtype for p in own):
                parameters = [p for p in own if p.dtype == dtype]
                own_names = [names[id(p)] for p in parameters]
                stage.append(FlatParamGroup(own_names, parameters, group, self.comm_timer, scatters=scatters, offload=offload))
            if stage and place is module:
                self._install_root(module, stage)
            elif stage:
                self._stages.append(stage)
                self._install(place, len(self._stages) - 1)
            if stage:
                self.units += stage
        self._calls = CallOrder(len(self._stages))
        self.shards = nn.ParameterList([u.shard for u in self.units])
        self._sent: FlatParamGroup | None = None  # its gradients are on their way to their owners
        self._queue: list[FlatParamGroup] = []  # gradients leave in this order on every rank, whatever order they are complete in
        self._full = set[FlatParamGroup]()  # gradients that are complete and have not left
        self._uneven = set[int]()  # stages that some ranks have called in this step and others have not
        self._warned = False

    def _install(self, place: nn.Module, number: int) -> None:
        stage = self._stages[number]

        def before_forward(*_: Any) -> None:
            if not in_backward():
                for passed in self._calls.reach(number):
                    self._pass(passed)
            for unit in stage:
                unit.wait()
            if not in_backward():
                self._fetch(self._calls.after(number))

        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            # The gradient of an output comes just before the unit's own backward; which of several comes first, nobody knows.
            if outputs := [t for t in _tensors(output) if t.requires_grad]:
                register_multi_grad_hook(outputs, before_backward, mode="any")
            if not in_backward():
                self._free(number)

        def before_backward(_: torch.Tensor) -> None:
            for unit in stage:
                unit.wait()
                unit.begin_backward()
            self._fetch(self._calls.before(number))

        place.register_forward_pre_hook(before_forward)
        place.register_forward_hook(after_forward)
        self._on_gradients(stage, then=lambda unit: self._free(number, unit))

    def _install_root(self, module: nn.Module, stage: list[FlatParamGroup]) -> None:
        """What is in no block: whole from forward to backward's end."""

        def before_forward(*_: Any) -> None:
            for unit in stage:
                unit.wait()

        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            if outputs := [t for t in _tensors(output) if t.requires_grad]:
                register_multi_grad_hook(outputs, before_backward, mode="any")

        def before_backward(_: torch.Tensor) -> None:
            for unit in stage:
                unit.wait()
                unit.begin_backward()
            self._fetch(self._calls.even[-1] if self._calls.even else None)

        module.register_forward_pre_hook(before_forward)
        module.register_forward_hook(after_forward)
        self._on_gradients(stage, then=lambda _: None)

    def _on_gradients(self, stage: list[FlatParamGroup], then: Callable[[FlatParamGroup], None]) -> None:
        def arrived(unit: FlatParamGroup, place: int, _: torch.Tensor) -> None:
            unit.used.add(place)
            unit.waiting -= 1
            if unit.waiting == 0:
                if self.synchronize:
                    self._full.add(unit)
                    self._send()
                then(unit)

        for unit in stage:
            for place, parameter in enumerate(unit.parameters):
                on_gradient(parameter, partial(arrived, unit, place))

    def _send(self) -> None:
        """Whole gradients of two units at most are in memory: those under way, and those that are computed meanwhile."""
        while self._queue and self._queue[0] in self._full:
            unit = self._queue.pop(0)
            self._full.remove(unit)
            unit.scatter()
            before, self._sent = self._sent, unit
            if before is not None and before is not unit:
                before.settle()

    def _fetch(self, number: int | None) -> None:
        for unit in self._stages[number] if number is not None else []:
            unit.gather()

    def _free(self, number: int, *units: FlatParamGroup) -> None:
        """Frees a stage, or some units of it."""
        for unit in (units or self._stages[number]) if number not in self._uneven else ():
            unit.free()

    def _pass(self, number: int) -> None:
        """Takes part in the gathering of a block that this rank does not call."""
        for unit in self._stages[number]:
            unit.gather()
        self._free(number)

    def _agree(self) -> None:
        """After a forward: which blocks will have a backward on all ranks, which on some."""
        for passed in self._calls.rest():
            self._pass(passed)
        if not torch.is_grad_enabled() or not self._stages:
            return
        rows = self._group.gather(torch.tensor(self._calls.row())).tolist()
        everywhere, somewhere = self._calls.agree(rows)
        # The others take no part in a backward's gathering, so it is done now; gradients of these leave when all others have.
        for number in (n for n in self._calls.order if n in somewhere - self._uneven):
            self._fetch(number)
        self._uneven |= somewhere
        self._calls.even = [n for n in self._calls.order if n in everywhere - self._uneven]
        staged = {unit for stage in self._stages for unit in stage}
        root = [unit for unit in self.units if unit not in staged]
        self._queue, self._full = [u for n in reversed(self._calls.even) for u in self._stages[n]] + root, set()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        self._calls.begin()
        out = self.inner[0](*args, **kwargs)
        self._agree()
        return out

    def train(self, mode: bool = True) -> ScratchFsdpModel:
        """Passes the mode on to the module, which is not registered here."""
        super().train(mode)
        self.inner[0].train(mode)
        return self

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        """Itself and the module's own."""
        yield self
        yield from self.inner[0].modules(remove_duplicate)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The module's own."""
        return self.inner[0].named_buffers(*args, **kwargs)

    def finish(self) -> None:
        """All gradients are with their owners; no unit is whole."""
        used = self._used_anywhere()
        with self.comm_timer.counting():
            for unit in dict.fromkeys((*self._queue, *self.units)):  # what is left of the queue leaves first, as on other ranks
                if used[unit]:
                    unit.join()
                unit.end_backward()
                unit.free()
        self._begin_step()
        self.comm_timer.step_done()

    def forget_backward(self) -> None:
        """Nothing is left of a backward that was broken off."""
        for unit in self.units:
            unit.forget_backward()
        self._begin_step()

    def _begin_step(self) -> None:
        self._sent = None
        self._queue, self._full, self._uneven = [], set(), set()
        for unit in self.units:
            unit.sent = False
            unit.used.clear()

    def _used_anywhere(self) -> dict[FlatParamGroup, bool]:
        """Returns whether some rank has a gradient for a unit; logs once what only counts as zero."""
        flags = torch.tensor([place in u.used for u in self.units for place in range(len(u.parameters))], dtype=torch.uint8)
        anywhere = iter(self._group.gather(flags).amax(0).tolist())
        used = {unit: [bool(next(anywhere)) for _ in unit.parameters] for unit in self.units}
        if not self._warned:
            unused = [n for u, seen in used.items() if any(seen) for n, is_used in zip(u.names, seen, strict=True) if not is_used]
            if unused:
                self._warned = True
                log.warning(
                    "no gradient for %s: it counts as zero, which AdamW decays; write strategy fsdp", ", ".join(unused[:3])
                )
        return {unit: any(seen) for unit, seen in used.items()}

    # Checkpoints hold parts of tensors by the module's own names, so that any strategy and any world size can read them, and
    # nothing is gathered for one.

    def portable_state_dict(self) -> StateDict:
        """This rank's parts of the parameters, and buffers."""
        state: StateDict = {}
        for unit in self.units:
            state |= unit.parts(unit.shard)
        state |= {name: tensor.detach() for name, tensor in self._kept.items()}
        return state | {alias: state[name] for alias, name in self._aliases.items()}

    def load_portable_state_dict(self, state: StateDict) -> None:
        """The inverse: each rank keeps its part."""
        with torch.no_grad():
            for unit in self.units:
                unit.free()
                unit.take(unit.shard.detach(), state)
            for name, tensor in self._kept.items():
                tensor.copy_(state[name])

    def portable_optimizer_state(self, optimizer: Optimizer) -> StateDict:
        """The optimizer's state as torch's get_optimizer_state_dict gives it for an unsharded model, in parts."""
        state: StateDict = {}
        groups = []
        for group, units in self._groups(optimizer):
            for unit in units:
                for key, value in initialized(optimizer, unit.shard).items():
                    sharded = value.shape == unit.shard.shape
                    own = unit.parts(value) if sharded else {name: value.clone() for name in unit.names}
                    for name, tensor in own.items():
                        state.setdefault(name, {})[key] = tensor
            options = {k: v for k, v in group.items() if k != "params"}
            groups.append({"params": [name for unit in units for name in unit.names]} | options)
        return {"state": state, "param_groups": groups}

    def load_portable_optimizer_state(self, optimizer: Optimizer, tree: StateDict) -> None:
        """The inverse."""
        for group, units in self._groups(optimizer):
            for unit in units:
                for key, value in initialized(optimizer, unit.shard).items():
                    saved = {name: tree["state"][name][key] for name in unit.names}
                    if value.shape == unit.shard.shape:
                        unit.take(value, saved)
                    else:
                        value.copy_(torch.stack(list(saved.values())).amax(0))  # steps: 0 of one that has had no gradient
            options = next(g for g in tree["param_groups"] if units[0].names[0] in g["params"])
            group.update({k: v for k, v in options.items() if k != "params"})

    def _groups(self, optimizer: Optimizer) -> list[tuple[dict[str, Any], list[FlatParamGroup]]]:
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
    if isinstance(output, Mapping):
        inside = list(output.values())
    elif isinstance(output, (tuple, list)):
        inside = list(output)
    else:
        inside = [getattr(output, f.name) for f in fields(output)] if is_dataclass(output) else []
    return [t for value in inside for t in _tensors(value)]


class FsdpScratch:
    """The strategy `fsdp_scratch`."""

    name = "fsdp_scratch"

    def __init__(self, config: FsdpScratchConfig | None = None, pattern: str | None = None) -> None:
        self.config = config or FsdpScratchConfig()
        self._block_pattern = pattern

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """See Strategy."""
        return ScratchFsdpModel(model, group, blocks(model, self._block_pattern), offload=self.config.cpu_offload)

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """See Strategy. Until the last one, whole gradients stay on each rank."""
        assert isinstance(model, ScratchFsdpModel)
        model.synchronize = last or self.config.reduce_every_micro_batch
        try:
            with model.comm_timer.counting():
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
        with model.comm_timer.counting(), model.comm_timer.waiting():
            dist.all_reduce(square)
        norm = square.sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """See Strategy."""
        assert isinstance(model, ScratchFsdpModel)
        return model.comm_timer.pop_stats()

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See Strategy."""
        assert isinstance(model, ScratchFsdpModel)
        model.forget_backward()
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
