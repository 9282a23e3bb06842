"""What a checkpoint holds, as state dicts: which rank writes which part, and the template that a load fills in.

Three kinds of content:
- sharded: tensors of modules and optimizers, through torch.distributed.checkpoint, so that another world size can read them;
- shared: small state that is the same on every rank (scheduler, scaler, data position), one file by rank 0;
- private: what each rank has for itself (random number generators), one file a rank.
"""

from __future__ import annotations

import heapq
import io
import pickle
import re
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

from dtj_trainer.distributed.buffer_broadcast import broadcast_buffers
from dtj_trainer.distributed.flat_shard import FlatShard, StateDict
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError

TORCHS_PREFIXES = ("_orig_mod", "_checkpoint_wrapped_module")  # of torch.compile and of torch's checkpoint_wrapper


@runtime_checkable
class Stateful(Protocol):
    """Anything with the usual pair: a scheduler, a GradScaler, a sampler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class CheckpointState:
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
        self._owner = {name: owner_of(name, optimizer, self._modules) for name, optimizer in self._optimizers.items()}

    def forget_gradients(self) -> None:
        """Before a load: torch makes a fresh optimizer's state, to be filled in, only while there are no gradients."""
        for optimizer in self._optimizers.values():
            if not optimizer.state:
                optimizer.zero_grad(set_to_none=True)

    def sharded(self) -> StateDict:
        """State dicts by part; their tensors are the live ones, so a load into this tree fills the model in place."""
        tree: StateDict = {}
        for name, module in self._modules.items():
            tree[name] = model_state(module)
        for name, optimizer in self._optimizers.items():
            own = getattr(self._owner[name], "portable_optimizer_state", None)
            tree[name] = own(optimizer) if own else get_optimizer_state_dict(self._owner[name], optimizer)
        return tree

    def take_out_fresh(self, tree: StateDict, known: Collection[str]) -> dict[str, StateDict]:
        """Takes from `tree` the optimizers' state of parameters of which the checkpoint has none: no gradient had come by then.

        Put back after the load, it is what it was: zeros. `known`: dotted keys of the checkpoint.
        """
        out: dict[str, StateDict] = {}
        for name in self._optimizers:
            state = tree[name]["state"]
            gone = [p for p, values in state.items() if values and not any(f"{name}.state.{p}.{key}" in known for key in values)]
            if len(gone) < len(state):
                out[name] = {p: state.pop(p) for p in gone}
        return out

    def load_sharded(self, tree: StateDict) -> None:
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

    def shared(self) -> StateDict:
        """State dicts of everything that is neither module nor optimizer, as a load will give them back.

        Copied, because the training goes on while a thread writes them. Raises ConfigError, which names the part, for a state
        that torch.save writes and torch.load(weights_only=True) refuses: no attempt could ever start from that checkpoint.
        """
        return {name: _read_back(name, part.state_dict()) for name, part in self._others.items()}

    def load_shared(self, tree: StateDict) -> None:
        """Raises ConfigError for a part that the checkpoint does not have."""
        for name, part in self._others.items():
            if name not in tree:
                raise ConfigError(f"the checkpoint has no part {name!r}, only {sorted(tree)}: leave it out or use a new folder")
            part.load_state_dict(tree[name])

    def buffer_keys(self) -> set[str]:
        """Keys of module buffers: under DDP each rank has its own running statistics, and rank 0's are the ones that count."""
        return {f"{part}.{key}" for part, module in self._modules.items() for key in buffer_names(module)}

    def trained_keys(self, tree: StateDict) -> set[str]:
        """Keys of what is trained in the tree that `sharded` gives: tensors of modules, without buffers and frozen parameters."""
        frozen = {
            f"{part}.{plain_name(module, name)}"
            for part, module in self._modules.items()
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if not parameter.requires_grad
        }
        return {f"{part}.{key}" for part in self._modules for key in tree[part]} - self.buffer_keys() - frozen

    def broadcast_buffers(self, group: Group) -> None:
        """Gives every rank rank 0's running statistics, which are the ones that a checkpoint holds; a collective."""
        for module in self._modules.values():
            broadcast_buffers(module, group)


def _read_back(name: str, state: Any) -> Any:
    written = io.BytesIO()
    try:
        torch.save(state, written)
        written.seek(0)
        return torch.load(written, map_location="cpu", weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as e:
        refused = re.search(r"GLOBAL (\S+)", str(e))  # the class, in the middle of torch's long advice
        what = refused[1] if refused else str(e).splitlines()[0]
        raise ConfigError(
            f"state part {name!r} can't be loaded from a checkpoint ({what}): its state_dict may hold tensors, numbers, text, "
            "None, and lists, tuples, sets and dicts of them; convert the rest (a NumPy array by torch.from_numpy)"
        ) from e


def owner_of(name: str, optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> nn.Module:
    """Returns the module whose parameters `optimizer` has: one of `modules`, or several of them under their part names.

    Raises ConfigError if a parameter is of none of them, or if modules that cannot share an optimizer do.
    """
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    parameters = {part: {id(p) for p in module.parameters()} for part, module in modules.items()}
    for part, module in modules.items():
        if wanted <= parameters[part]:
            return module
    if wanted.isdisjoint(set().union(*parameters.values())):
        raise ConfigError(f"optimizer {name!r} holds no parameter of the modules {sorted(modules)}: pass its model too")
    if strays := wanted.difference(*parameters.values()):
        raise ConfigError(
            f"optimizer {name!r} holds {len(strays)} parameters that are in none of the modules {sorted(modules)}: "
            "pass the module that has them too (put a parameter of its own into a torch.nn.ParameterList, and pass that)"
        )
    owners = {part: module for part, module in modules.items() if wanted & parameters[part]}
    for part, module in owners.items():
        if hasattr(module, "portable_state_dict") or hasattr(nn.ModuleDict, part):
            raise ConfigError(
                f"optimizer {name!r} holds parameters of the modules {sorted(owners)}, and {part!r} cannot share one: "
                "write an optimizer for each module, or give the part another name"
            )
    return nn.ModuleDict(owners)


def model_state(module: nn.Module) -> StateDict:
    """A module's state dict without what wrappers put in front of the names; the strategies from scratch give their own."""
    own = getattr(module, "portable_state_dict", None)
    return dict(own() if own else get_model_state_dict(module))


def plain_name(module: nn.Module, name: str) -> str:
    """The name of a parameter or buffer as a state dict has it: without what DDP, torch's or ours, puts in front."""
    parts, at = [], module
    for part in name.split("."):
        ours = hasattr(at, "portable_state_dict") and isinstance(getattr(at, "module", None), nn.Module)
        of_wrapper = isinstance(at, DistributedDataParallel) or (ours and part == "module") or part in TORCHS_PREFIXES
        at = getattr(at, part, at)
        if not of_wrapper:
            parts.append(part)
    return ".".join(parts)


def buffer_names(module: nn.Module) -> list[str]:
    """The names of a module's buffers as a state dict has them."""
    return [plain_name(module, name) for name, _ in module.named_buffers(remove_duplicate=False)]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts with its dotted key."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def assign(tree: StateDict, world_size: int, first_rank: set[str]) -> dict[str, int]:
    """Which rank writes each replicated tensor: the biggest first, each to the rank with least so far.

    Replicated tensors are the same on every rank, so each rank copies and writes only its share: staging costs 1/world.
    Leaves in `first_rank`, and those that are no tensor, are rank 0's. DTensors and FlatShards are not listed: each rank has
    its own.
    """
    owner: dict[str, int] = {}
    sizes: list[tuple[int, str]] = []
    for key, leaf in leaves(tree):
        if isinstance(leaf, (DTensor, FlatShard)):
            continue
        if isinstance(leaf, torch.Tensor) and key not in first_rank:
            sizes.append((-leaf.numel() * leaf.element_size(), key))
        else:
            owner[key] = 0
    load = [(0, rank) for rank in range(world_size)]
    for negative, key in sorted(sizes):
        total, rank = heapq.heappop(load)
        owner[key] = rank
        heapq.heappush(load, (total - negative, rank))
    return owner


def share_of(tree: StateDict, owner: Mapping[str, int], rank: int, prefix: str = "") -> StateDict:
    """The tree with only the leaves that `rank` writes."""
    out: StateDict = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            if inner := share_of(value, owner, rank, f"{prefix}{key}."):
                out[key] = inner
        elif owner.get(f"{prefix}{key}", rank) == rank:
            out[key] = value
    return out
