"""What a checkpoint holds, as state dicts: which rank writes which part, and the template that a load fills in.

Three kinds of content:
- sharded: tensors of modules and optimizers, through torch.distributed.checkpoint, so that another world size can read them;
- shared: small state that is the same on every rank (scheduler, scaler, data position), one file by rank 0;
- private: what each rank has for itself (random number generators), one file a rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dtj_trainer.comm.parts import Part
from dtj_trainer.errors import ConfigError

Tree = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """Anything with the usual pair: a scheduler, a GradScaler, a sampler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Contents:
    """The named parts of a run's state. Modules and optimizers are sharded content, everything else is shared."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        for name, part in parts.items():
            if not isinstance(part, Stateful):
                raise ConfigError(f"state part {name!r} ({type(part).__name__}) has no state_dict/load_state_dict: leave it out")
        self._modules = {k: v for k, v in parts.items() if isinstance(v, nn.Module)}
        self._optimizers = {k: v for k, v in parts.items() if isinstance(v, Optimizer)}
        for part in (part for module in self._modules.values() for part in module.modules()):
            if isinstance(part, FSDPModule):
                part.reshard()  # after a forward without backward (validation) its parameters are not the optimizer's
        taken = self._modules.keys() | self._optimizers.keys()
        self._others = {k: v for k, v in parts.items() if k not in taken and isinstance(v, Stateful)}
        self._owner = {name: self._module_of(name, optimizer) for name, optimizer in self._optimizers.items()}

    def _module_of(self, name: str, optimizer: Optimizer) -> nn.Module:
        first = optimizer.param_groups[0]["params"][0]
        for module in self._modules.values():
            if any(p is first for p in module.parameters()):
                return module
        raise ConfigError(f"optimizer {name!r} holds no parameter of the modules {sorted(self._modules)}: pass its model too")

    def forget_gradients(self) -> None:
        """Before a load: torch makes a fresh optimizer's state, to be filled in, only while there are no gradients."""
        for optimizer in self._optimizers.values():
            if not optimizer.state:
                optimizer.zero_grad(set_to_none=True)

    def sharded(self) -> Tree:
        """State dicts by part; their tensors are the live ones, so a load into this tree fills the model in place."""
        tree: Tree = {}
        for name, module in self._modules.items():
            own = getattr(module, "portable_state_dict", None)  # the strategies from scratch say their own
            tree[name] = own() if own else get_model_state_dict(module)
        for name, optimizer in self._optimizers.items():
            own = getattr(self._owner[name], "portable_optimizer_state", None)
            tree[name] = own(optimizer) if own else get_optimizer_state_dict(self._owner[name], optimizer)
        return tree

    def take_out_fresh(self, tree: Tree, known: Collection[str]) -> dict[str, Tree]:
        """Takes from `tree` the optimizers' state of parameters of which the checkpoint has none: no gradient had come by then.

        Put back after the load, it is what it was: zeros. `known`: dotted keys of the checkpoint.
        """
        out: dict[str, Tree] = {}
        for name in self._optimizers:
            state = tree[name]["state"]
            gone = [p for p, values in state.items() if values and not any(f"{name}.state.{p}.{key}" in known for key in values)]
            if len(gone) < len(state):
                out[name] = {p: state.pop(p) for p in gone}
        return out

    def load_sharded(self, tree: Tree) -> None:
        """Hands a filled-in tree back to modules and optimizers (step counts and options are not tensors)."""
        for name, module in self._modules.items():
            own = getattr(module, "load_portable_state_dict", None)
            if own:
                own(tree[name])
            else:
                set_model_state_dict(module, tree[name])
        for name, optimizer in self._optimizers.items():
            own = getattr(self._owner[name], "load_portable_optimizer_state", None)
            if own:
                own(optimizer, tree[name])
            else:
                set_optimizer_state_dict(self._owner[name], optimizer, tree[name])

    def shared(self) -> Tree:
        """State dicts of everything that is neither module nor optimizer."""
        return {name: part.state_dict() for name, part in self._others.items()}

    def load_shared(self, tree: Tree) -> None:
        """Raises ConfigError for a part that the checkpoint does not have."""
        for name, part in self._others.items():
            if name not in tree:
                raise ConfigError(f"the checkpoint has no part {name!r}, only {sorted(tree)}: leave it out or use a new folder")
            part.load_state_dict(tree[name])

    def buffer_keys(self) -> set[str]:
        """Keys of module buffers: under DDP each rank has its own running statistics, and rank 0's are the ones that count."""
        return {f"{part}.{key}" for part, module in self._modules.items() for key, _ in module.named_buffers()}


def parameter_names(model: nn.Module) -> list[str]:
    """The names of `model.parameters()`, in that order, without what DDP, torch's or ours, puts in front."""
    wrapped = isinstance(model, DistributedDataParallel) or hasattr(model, "portable_state_dict")
    return [name.removeprefix("module.") if wrapped else name for name, _ in model.named_parameters()]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts with its dotted key."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def assign(tree: Tree, world_size: int, first_rank: set[str]) -> dict[str, int]:
    """Which rank writes each replicated tensor: the biggest first, each to the rank with least so far.

    Replicated tensors are the same on every rank, so each rank copies and writes only its share: staging costs 1/world.
    Leaves in `first_rank`, and those that are no tensor, are rank 0's. DTensors and Parts are not listed: each rank has its own.
    """
    owner: dict[str, int] = {}
    sizes: list[tuple[int, str]] = []
    for key, leaf in leaves(tree):
        if isinstance(leaf, (DTensor, Part)):
            continue
        if isinstance(leaf, torch.Tensor) and key.replace("module.", "") not in first_rank and key not in first_rank:
            sizes.append((-leaf.numel() * leaf.element_size(), key))
        else:
            owner[key] = 0
    load = [(0, rank) for rank in range(world_size)]
    for negative, key in sorted(sizes):
        total, rank = heapq.heappop(load)
        owner[key] = rank
        heapq.heappush(load, (total - negative, rank))
    return owner


def share_of(tree: Tree, owner: Mapping[str, int], rank: int, prefix: str = "") -> Tree:
    """The tree with only the leaves that `rank` writes."""
    out: Tree = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            if inner := share_of(value, owner, rank, f"{prefix}{key}."):
                out[key] = inner
        elif owner.get(f"{prefix}{key}", rank) == rank:
            out[key] = value
    return out
