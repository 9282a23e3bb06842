"""The contents of a snapshot: the live tensors of one rank as they are, and everything else as one blob.

Nothing is gathered or converted: a rank holds runs of whole tensors, and a snapshot names them, so
that another number of ranks can divide them again. Two lists of tensors: the data (parameters, the
optimizer's tensors), which replicas have in common, and the private ones (buffers), which under DDP
each rank has for itself. The blob has random numbers, step counts that are no tensors, options of
the optimizers, and every other part.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dtj_trainer.checkpoint import rng
from dtj_trainer.checkpoint.contents import RankTensors, Stateful, plain_name
from dtj_trainer.distributed.buffer_broadcast import broadcast_buffers
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots.runs import EVERYWHERE, UNKNOWN, Run, count, run_of

Named = list[tuple[str, torch.Tensor]]


class Key(NamedTuple):
    """Describes one tensor in a manifest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of this rank's part."""
    device: str
    """The kind of device."""
    sharded: bool
    """Whether it is a DTensor's local part."""
    whole: tuple[int, ...]
    start: int
    """With `whole` the part's run."""

    @property
    def run(self) -> Run:
        """The elements of the whole tensor that are in this part."""
        return Run(self.whole, self.start)

    @property
    def held(self) -> int:
        """The number of these elements."""
        return count(prod(self.shape), self.run)


class Part(NamedTuple):
    """A tensor that was read from a snapshot."""

    value: torch.Tensor
    device: str
    """The kind of device that it was on."""
    sharded: bool
    """Whether it was a DTensor's local part."""


class LiveState:
    """The named parts of a run: modules, optimizers, and anything with a state_dict."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._modules = {k: v for k, v in parts.items() if isinstance(v, nn.Module)}
        every = {k: v for k, v in parts.items() if isinstance(v, Optimizer)}
        # An optimizer that has a state_dict of its own keeps more than torch's does.
        self._optimizers = {k: v for k, v in every.items() if type(v).state_dict is Optimizer.state_dict}
        taken = self._modules.keys() | self._optimizers.keys()
        self._others = {k: v for k, v in parts.items() if k not in taken and isinstance(v, Stateful)}
        self._plain: dict[str, str] = {}
        """Names without the prefixes of wrappers, which a single rank lacks."""
        self._runs: dict[tuple[str, torch.Size], Run] = {}
        """Runs by name and local shape, since they never change."""

    @torch.no_grad()
    def layout(self, world_size: int = 1) -> str:
        """Returns a digest of what a snapshot must fit: it is known before the first step.

        The layout names the shards that this rank holds and not the world, so a snapshot of another
        world fits a rank that holds the same shards.
        """
        return _digest([*self.keys(*self._module_tensors()), *self._kinds(world_size), self._shards()])

    @torch.no_grad()
    def whole_layout(self, world_size: int = 1) -> str:
        """Returns a digest of the whole tensors, whatever part of them this rank holds.

        Ranks of another world size that have the same can divide this state. "" if no other world size can.
        """
        private, data = self.keys(*self._module_tensors())
        if any(isinstance(part, RankTensors) and part.rank_tensors() for part in self._others.values()):
            return ""
        if self.shard is None or any(each.start == UNKNOWN for each in data):
            return ""
        whole = [[each.name, each.dtype, each.device, each.sharded, each.whole, each.start < 0] for each in data]
        return _digest([private, whole, *self._kinds(world_size)])

    @property
    def shard(self) -> tuple[int, int] | None:
        """The number of this rank's shard, and how many there are; None if tensors are sharded differently."""
        places = {(number, shards) for _, shards, number in self._shards()} or {(0, 1)}
        return places.pop() if len(places) == 1 else None

    def _kinds(self, world_size: int) -> list[object]:
        groups = {
            name: [type(optimizer).__qualname__, [len(group["params"]) for group in optimizer.param_groups]]
            for name, optimizer in self._optimizers.items()
        }
        others = {name: type(part).__qualname__ for name, part in self._others.items()}
        # An optimizer with a state_dict of its own may spread its state over the ranks.
        worlds = sorted({world_size for part in self._others.values() if isinstance(part, Optimizer)})
        return [groups, others, torch.__version__, worlds]

    def keys(self, private: Named, data: Named) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Returns what an Image is made of."""
        fresh = [each for each in (*private, *data) if (each[0], local(each[1]).shape) not in self._runs]
        if fresh:
            self._find_runs(fresh)
        return tuple(map(self._key, private)), tuple(map(self._key, data))

    def part_of(self, saved: Sequence[Key]) -> list[Key]:
        """Returns what this rank holds of the same tensors: of the data of another rank, in another world.

        Raises SnapshotError for a tensor that does not fit.
        """
        own = {each.name: each for each in self.keys(*self._module_tensors())[1]}
        places, flat = self._places(), self._flat_runs()
        out = []
        for each in saved:
            mine = own.get(each.name)
            if mine is None:
                parameter = places.get(_place(each.name))
                if parameter is None:
                    raise SnapshotError(f"{each.name} belongs to no parameter")
                mine = each
                if each.start != EVERYWHERE:
                    whole, start = run_of(parameter, flat)
                    mine = each._replace(shape=tuple(local(parameter).shape), whole=whole, start=start)
            if (mine.dtype, mine.whole, mine.start < 0) != (each.dtype, each.whole, each.start < 0):
                raise SnapshotError(f"{each.name} does not fit")
            out.append(mine)
        return out

    def tensors(self) -> tuple[Named, Named]:
        """Returns the live (private, data) tensors. Raises SnapshotError for one that can't be restored."""
        for module in self._submodules():
            if isinstance(module, FSDPModule):
                # After a forward without backward (validation) its parameters are not the
                # optimizer's.
                module.reshard()
        private, data = self._module_tensors()
        for name, optimizer in self._optimizers.items():
            for place, parameter in _parameters(optimizer):
                for field, value in optimizer.state.get(parameter, {}).items():
                    if not isinstance(field, str):
                        raise SnapshotError(f"{name}: its state has a key that is no text, {field!r}")
                    if isinstance(value, torch.Tensor):
                        _check_placement(f"{name}.{place}.{field}", value, parameter)
                        data.append((f"{name}.{place}.{field}", value))
        return private, data

    def trained(self) -> set[str]:
        """Returns the names of the trained parameters, which must be finite."""
        return {
            self._name(part, name)
            for part, module in self._modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def blob(self) -> bytes:
        """Returns everything else, written by torch.save."""
        optimizers = {}
        for name, optimizer in self._optimizers.items():
            values = {
                f"{place}.{field}": value
                for place, parameter in _parameters(optimizer)
                for field, value in optimizer.state.get(parameter, {}).items()
                if not isinstance(value, torch.Tensor)
            }
            groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            optimizers[name] = {"values": values, "groups": groups}
        tree = {
            "optimizers": optimizers,
            "others": {name: part.state_dict() for name, part in self._others.items()},
            "extra": {name: module.get_extra_state() for name, module in self._with_extra_state()},
            "rng": rng.capture(),
        }
        written = io.BytesIO()
        try:
            torch.save(tree, written)
        except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as e:
            raise SnapshotError(f"the state can't be written: {str(e).splitlines()[0]}") from e
        return written.getvalue()

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Part], blob: bytes) -> None:
        """Loads tensors by name, and what `blob` returned."""
        tree = read_blob(blob)
        for module in self._submodules():
            if isinstance(module, FSDPModule):
                module.reshard()
            elif discard := getattr(module, "discard_gathered", None):
                discard()
        private, parameters = self._module_tensors()
        for name, live in (*private, *parameters):
            local(live).copy_(tensors[name].value)
        for name, optimizer in self._optimizers.items():
            self._restore_optimizer(name, optimizer, tensors, tree["optimizers"][name])
        for name, module in self._with_extra_state():
            module.set_extra_state(tree["extra"][name])
        for name, part in self._others.items():
            part.load_state_dict(tree["others"][name])
        rng.restore(tree["rng"])

    def broadcast_buffers(self, group: Group) -> None:
        """Gives every rank rank 0's running statistics, as a checkpoint of another world does; a collective."""
        for module in self._modules.values():
            broadcast_buffers(module, group)

    def _key(self, named: tuple[str, torch.Tensor]) -> Key:
        name, tensor = named
        part = local(tensor)
        dtype = str(part.dtype).removeprefix("torch.")
        run = self._runs[name, part.shape]
        return Key(name, dtype, tuple(part.shape), part.device.type, isinstance(tensor, DTensor), *run)

    def _find_runs(self, fresh: Named) -> None:
        flat, places = self._flat_runs(), self._places()
        for name, tensor in fresh:
            parameter = places.get(_place(name))
            # The optimizer's tensor for a flat shard is one too, unless it is a count of steps.
            alike = parameter is not None and id(parameter) in flat and parameter.shape == tensor.shape
            run = run_of(parameter if alike and parameter is not None else tensor, flat)
            self._runs[name, local(tensor).shape] = run

    def _flat_runs(self) -> dict[int, tuple[int, int]]:
        out: dict[int, tuple[int, int]] = {}
        for module in self._submodules():
            if runs := getattr(module, "shard_runs", None):
                out |= runs()
        return out

    def _places(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{place}": parameter
            for name, optimizer in self._optimizers.items()
            for place, parameter in _parameters(optimizer)
        }

    def _restore_optimizer(
        self, name: str, optimizer: Optimizer, tensors: Mapping[str, Part], saved: dict[str, Any]
    ) -> None:
        places = dict(_parameters(optimizer))
        optimizer.state.clear()
        for key_, saved_tensor in tensors.items():
            part, _, rest = key_.partition(".")
            place, _, field = rest.partition(".")
            if part == name and place in places:
                parameter = places[place]
                optimizer.state[parameter][field] = _as_state(saved_tensor, parameter)
        for key_, value in saved["values"].items():
            place, _, field = key_.partition(".")
            optimizer.state[places[place]][field] = value
        for group, options in zip(optimizer.param_groups, saved["groups"], strict=True):
            for option, value in options.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(option), torch.Tensor):
                    group[option].copy_(value)
                else:
                    group[option] = value

    def _module_tensors(self) -> tuple[Named, Named]:
        private: Named = []
        data: Named = []
        for part, module in self._modules.items():
            data += [(self._name(part, name), parameter) for name, parameter in module.named_parameters()]
            private += [(self._name(part, name), buffer) for name, buffer in module.named_buffers()]
            for submodule in module.modules():
                if more := getattr(submodule, "unregistered_tensors", None):
                    data += [(f"{part}.:{name}", tensor) for name, tensor in more().items()]
        for part, other in self._others.items():
            if isinstance(other, RankTensors):
                private += [(f"{part}.{name}", tensor) for name, tensor in other.rank_tensors().items()]
        return private, data

    def _name(self, part: str, name: str) -> str:
        whole = f"{part}.{name}"
        if whole not in self._plain:
            self._plain[whole] = f"{part}.{plain_name(self._modules[part], name)}"
        return self._plain[whole]

    def _shards(self) -> list[tuple[int, int, int]]:
        """Returns the shards that this rank holds: dimension of the mesh, shards in it, number of this one."""
        out = set()
        for module in self._submodules():
            if shard := getattr(module, "shard_place", None):
                out.add((-1, *shard))
            for parameter in module.parameters(recurse=False):
                if isinstance(parameter, DTensor):
                    mesh = parameter.device_mesh
                    out |= {
                        (dimension, mesh.size(dimension), mesh.get_local_rank(dimension))
                        for dimension, placement in enumerate(parameter.placements)
                        if not placement.is_replicate()
                    }
        return sorted(out)

    def _submodules(self) -> Iterator[nn.Module]:
        for module in self._modules.values():
            yield from module.modules()

    def _with_extra_state(self) -> Iterator[tuple[str, nn.Module]]:
        for part, module in self._modules.items():
            for name, submodule in module.named_modules():
                if type(submodule).get_extra_state is not nn.Module.get_extra_state:
                    yield self._name(part, name), submodule


def read_blob(blob: bytes) -> dict[str, Any]:
    """Reads what `LiveState.blob` returned. Raises SnapshotError for a class that torch does not load by itself."""
    try:
        tree: dict[str, Any] = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as e:
        raise SnapshotError(f"the state can't be read back: {str(e).splitlines()[0]}") from e
    return tree


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a tensor that this rank holds. Call it without gradients."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _parameters(optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each parameter with its place: group and number."""
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield f"{number}/{index}", parameter


def _place(name: str) -> str:
    """Returns the optimizer and the place in a name of `LiveState.tensors`."""
    return ".".join(name.split(".", 2)[:2])


def _check_placement(name: str, value: torch.Tensor, parameter: torch.Tensor) -> None:
    if isinstance(value, DTensor):
        same = isinstance(parameter, DTensor) and (value.device_mesh, value.placements, value.shape) == (
            parameter.device_mesh,
            parameter.placements,
            parameter.shape,
        )
        if not same:
            raise SnapshotError(f"{name} is not sharded as its parameter is")


def _as_state(saved: Part, parameter: torch.Tensor) -> torch.Tensor:
    value = saved.value.clone()
    if saved.device != "cpu":
        value = value.to(local(parameter).device)
    if not saved.sharded:
        return value
    if not isinstance(parameter, DTensor):
        raise SnapshotError("the state of a parameter was sharded, and the parameter is not")
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
