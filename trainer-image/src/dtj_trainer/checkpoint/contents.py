"""The contents of a checkpoint as state dicts: what each rank writes, and the template of a load.

Five kinds of content:
- sharded: tensors of modules and optimizers, through torch.distributed.checkpoint, so that another
  world size can read them;
- shared: small state that is the same on every rank (scheduler, scaler, data position), one file by
  rank 0;
- of a rank: tensors that each rank has for itself (residuals of error feedback), written like the sharded ones;
- private: small state that each rank has for itself (random number generators), one file a rank;
- own files: what all ranks write together by another library's means (DeepSpeed's engine).
"""

from __future__ import annotations

import heapq
import io
import pickle
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
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

RANKS = "ranks"
"""The key of all that each rank has for itself: `ranks.PART.RANK.NAME`."""
TORCH_PREFIXES = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile, checkpoint_wrapper


@runtime_checkable
class Stateful(Protocol):
    """Anything with the usual pair of methods: a scheduler, a GradScaler, a sampler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


@runtime_checkable
class RankTensors(Protocol):
    """A part with tensors that each rank has for itself, such as what error feedback has not sent yet.

    Another world size begins with their mean over the ranks that saved, on every rank. A checkpoint may
    lack the part: its run then begins with zeros.
    """

    def rank_tensors(self) -> dict[str, torch.Tensor]: ...


@runtime_checkable
class OwnFiles(Protocol):
    """A part whose files all ranks write and load together by means of its own, such as DeepSpeed's engine."""

    def nonfinite(self) -> str:
        """Returns the name of a trained tensor that is not finite on this rank; "" if all are."""
        ...

    def save_files(self, folder: Path) -> None:
        """Writes the files into a folder that all ranks see, where other files are; a collective."""
        ...

    def load_files(self, folder: Path) -> None:
        """Loads the files, which another number of ranks may have written; a collective."""
        ...


class CheckpointState:
    """The named parts of a run's state.

    Modules and optimizers are sharded content, everything else is shared.
    """

    def __init__(self, parts: Mapping[str, object]) -> None:
        for name, part in parts.items():
            if not isinstance(part, (Stateful, OwnFiles)):
                raise ConfigError(
                    f"state part {name!r} ({type(part).__name__}) has no state_dict/load_state_dict: leave it out"
                )
        self.own_files = [part for part in parts.values() if isinstance(part, OwnFiles)]
        self._modules = {k: v for k, v in parts.items() if isinstance(v, nn.Module)}
        self._optimizers = {k: v for k, v in parts.items() if isinstance(v, Optimizer)}
        for submodule in (submodule for module in self._modules.values() for submodule in module.modules()):
            if isinstance(submodule, FSDPModule):
                # After a forward without backward (validation) its parameters are not the
                # optimizer's.
                submodule.reshard()
        taken = self._modules.keys() | self._optimizers.keys()
        self._others = {k: v for k, v in parts.items() if k not in taken and isinstance(v, Stateful)}
        self._owner = {name: find_owner(name, optimizer, self._modules) for name, optimizer in self._optimizers.items()}

    def clear_gradients(self) -> None:
        """Clears gradients before a load: torch initializes a fresh optimizer's state only while there are none."""
        for optimizer in self._optimizers.values():
            if not optimizer.state:
                optimizer.zero_grad(set_to_none=True)

    def sharded(self) -> StateDict:
        """Returns state dicts by part.

        Their tensors are the live ones, so a load into this tree fills the model in place.
        """
        tree: StateDict = {}
        for name, module in self._modules.items():
            tree[name] = model_state(module)
        for name, optimizer in self._optimizers.items():
            own = getattr(self._owner[name], "portable_optimizer_state", None)
            tree[name] = own(optimizer) if own else get_optimizer_state_dict(self._owner[name], optimizer)
        return tree

    def of_rank(self, rank: int) -> StateDict:
        """Returns the tensors that this rank has for itself, by its number."""
        parts = {name: part.rank_tensors() for name, part in self._others.items() if isinstance(part, RankTensors)}
        found = {name: {str(rank): tensors} for name, tensors in parts.items() if tensors}
        return {RANKS: found} if found else {}

    def rows_to_load(self, known: Collection[str], saved: int, group: Group) -> dict[int, StateDict]:
        """Returns what this rank loads of the tensors that each of `saved` ranks had for itself, by their ranks.

        In the same world size those are the live tensors of its own, else new ones. `known`: dotted
        keys of the checkpoint.
        """
        rows: dict[int, StateDict] = {}
        for rank in range(group.rank, saved, group.world_size):
            for part, mine in self.of_rank(rank).get(RANKS, {}).items():
                tensors = {
                    name: tensor if saved == group.world_size else torch.zeros_like(tensor)
                    for name, tensor in mine[str(rank)].items()
                    if f"{RANKS}.{part}.{rank}.{name}" in known
                }
                if tensors:
                    rows.setdefault(rank, {})[part] = tensors
        return rows

    def load_rows(self, rows: Mapping[int, StateDict], saved: int, group: Group) -> None:
        """Gives every rank the mean of the tensors that `saved` ranks had for themselves; a collective.

        In the same world size each rank has its own ones already.
        """
        if saved == group.world_size:
            return
        for part, mine in self.of_rank(group.rank).get(RANKS, {}).items():
            for name, tensor in mine[str(group.rank)].items():
                tensor.zero_()
                for row in rows.values():
                    if name in row.get(part, {}):
                        tensor.add_(row[part][name])
                if group.world_size > 1:
                    dist.all_reduce(tensor)
                tensor.div_(saved)

    def pop_unsaved(self, tree: StateDict, known: Collection[str]) -> dict[str, StateDict]:
        """Removes from `tree` the optimizer state that the checkpoint lacks, and returns it.

        A parameter that had no gradient before the save has no state there. After the load the
        caller puts it back as it was: zeros. `known`: dotted keys of the checkpoint.
        """
        out: dict[str, StateDict] = {}
        for name in self._optimizers:
            state = tree[name]["state"]
            unsaved = [
                parameter
                for parameter, values in state.items()
                if values and not any(f"{name}.state.{parameter}.{key}" in known for key in values)
            ]
            if len(unsaved) < len(state):
                out[name] = {parameter: state.pop(parameter) for parameter in unsaved}
        return out

    def load_sharded(self, tree: StateDict) -> None:
        """Loads a filled-in tree into modules and optimizers: step counts and options are not tensors."""
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
        """Returns state dicts of everything but modules and optimizers, as a load will return them.

        The results are copies, because the training continues while a thread writes them. Raises
        ConfigError, which names the part, for a state that torch.save writes and
        torch.load(weights_only=True) rejects: no attempt could ever start from that checkpoint.
        """
        return {name: _round_trip(name, part.state_dict()) for name, part in self._others.items()}

    def load_shared(self, tree: StateDict) -> None:
        """Loads what `shared` returned. Raises ConfigError for a part that the checkpoint lacks."""
        for name, part in self._others.items():
            if name not in tree and isinstance(part, RankTensors):
                continue
            if name not in tree:
                raise ConfigError(
                    f"the checkpoint has no part {name!r}, only {sorted(tree)}: leave it out or use a new folder"
                )
            part.load_state_dict(tree[name])

    def buffer_keys(self) -> set[str]:
        """Returns the keys of module buffers, of which rank 0's are saved: under DDP each rank has its own."""
        return {f"{part}.{key}" for part, module in self._modules.items() for key in buffer_names(module)}

    def trained_keys(self, tree: StateDict) -> set[str]:
        """Returns the keys of trained parameters in the tree of `sharded`: no buffers, no frozen parameters."""
        frozen = {
            f"{part}.{plain_name(module, name)}"
            for part, module in self._modules.items()
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if not parameter.requires_grad
        }
        return {f"{part}.{key}" for part in self._modules for key in tree[part]} - self.buffer_keys() - frozen

    def broadcast_buffers(self, group: Group) -> None:
        """Gives every rank rank 0's running statistics, which a checkpoint holds; a collective."""
        for module in self._modules.values():
            broadcast_buffers(module, group)


def _round_trip(name: str, state: Any) -> Any:
    written = io.BytesIO()
    try:
        torch.save(state, written)
        written.seek(0)
        return torch.load(written, map_location="cpu", weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as e:
        rejected = re.search(r"GLOBAL (\S+)", str(e))  # the class, within torch's long advice
        what = rejected[1] if rejected else str(e).splitlines()[0]
        raise ConfigError(
            f"state part {name!r} can't be loaded from a checkpoint ({what}): its state_dict may hold tensors, "
            "numbers, "
            "text, None, and lists, tuples, sets and dicts of them; convert the rest (a NumPy array by "
            "torch.from_numpy)"
        ) from e


def find_owner(name: str, optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> nn.Module:
    """Returns the module whose parameters `optimizer` has, or several under their part names.

    Raises ConfigError if a parameter belongs to none of them, or if modules that can't share an
    optimizer do.
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
            "pass the module that has them too (put a parameter of its own into a torch.nn.ParameterList, and pass "
            "that)"
        )
    owners = {part: module for part, module in modules.items() if wanted & parameters[part]}
    for part, module in owners.items():
        if hasattr(module, "portable_state_dict") or hasattr(nn.ModuleDict, part):
            raise ConfigError(
                f"optimizer {name!r} holds parameters of the modules {sorted(owners)}, and {part!r} can't share one: "
                "write an optimizer for each module, or give the part another name"
            )
    return nn.ModuleDict(owners)


def model_state(module: nn.Module) -> StateDict:
    """Returns a module's state dict without the prefixes of wrappers.

    The strategies from scratch have state dicts of their own.
    """
    own = getattr(module, "portable_state_dict", None)
    return dict(own() if own else get_model_state_dict(module))


def plain_name(module: nn.Module, name: str) -> str:
    """Returns the name of a parameter or buffer in a state dict, without the prefixes of DDP (torch's, ours)."""
    plain, at = [], module
    for attribute in name.split("."):
        ours = hasattr(at, "portable_state_dict") and isinstance(getattr(at, "module", None), nn.Module)
        wrapper = isinstance(at, DistributedDataParallel) or (ours and attribute == "module")
        at = getattr(at, attribute, at)
        if not wrapper and attribute not in TORCH_PREFIXES:
            plain.append(attribute)
    return ".".join(plain)


def buffer_names(module: nn.Module) -> list[str]:
    """Returns the names of a module's buffers as a state dict has them."""
    return [plain_name(module, name) for name, _ in module.named_buffers(remove_duplicate=False)]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every leaf of nested dicts with its dotted key."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def assign_writers(tree: StateDict, world_size: int, first_rank: set[str]) -> dict[str, int]:
    """Returns which rank writes each replicated tensor.

    The biggest tensors come first, each by the rank with least so far. Replicated tensors are the
    same on every rank, so each rank copies and writes only its share: staging costs 1/world. Leaves
    in `first_rank`, and leaves that are not tensors, are rank 0's. DTensors and FlatShards are not
    listed: each rank has its own.
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


def select_share(tree: StateDict, owner: Mapping[str, int], rank: int, prefix: str = "") -> StateDict:
    """Returns the tree with only the leaves that `rank` writes."""
    out: StateDict = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            if inner := select_share(value, owner, rank, f"{prefix}{key}."):
                out[key] = inner
        elif owner.get(f"{prefix}{key}", rank) == rank:
            out[key] = value
    return out
