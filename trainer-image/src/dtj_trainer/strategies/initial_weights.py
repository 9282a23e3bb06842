"""Makes all ranks begin with rank 0's weights, which are sent block by block."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError

Fill = Callable[[torch.Tensor, torch.Tensor], None]
"""(tensor on the meta device, the same with memory): writes the weights into the second."""


def stand_in(_: torch.Tensor, made: torch.Tensor) -> None:
    """Fills a tensor whose values do not matter, because a step is only tried."""
    made.zero_()


def shapes(model: nn.Module) -> dict[str, str]:
    """Returns by name what must be the same on every rank: shape, dtype, and whether a parameter is trained."""
    trained = {
        f"parameter {n}": f"{_shape_and_dtype(p)}{'' if p.requires_grad else ', not trained'}"
        for n, p in model.named_parameters()
    }
    return trained | {f"buffer {n}": _shape_and_dtype(b) for n, b in model.named_buffers()}


def _shape_and_dtype(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def check_not_meta(model: nn.Module, strategy: str) -> None:
    """Raises ConfigError for a model without weights under a strategy that needs whole weights on each rank."""
    if any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        raise ConfigError(
            f"strategy={strategy} can't begin from torch.device('meta'): write fsdp or hsdp, or build the whole model"
        )


class WeightBroadcast:
    """Sends rank 0's weights to all ranks, one module at a time.

    The other ranks may have built their model under `torch.device("meta")`, rank 0 too where `fill` has
    the weights. A module gets memory only when its weights are sent, so a rank that shards each module at
    once never holds more than one whole module.
    """

    def __init__(self, model: nn.Module, group: Group, fill: Fill | None = None) -> None:
        self._group = group
        self._fill = fill
        self._done = set[int]()
        self._places: dict[int, list[tuple[dict[str, torch.Tensor | None], str]]] = {}
        for module in model.modules():
            for names in (module._parameters, module._buffers):
                for name, tensor in names.items():
                    if tensor is not None:
                        self._places.setdefault(id(tensor), []).append((names, name))  # type: ignore[arg-type]

    @torch.no_grad()
    def __call__(self, module: nn.Module) -> None:
        """Sends a module's weights and buffers; a collective.

        Raises ConfigError if rank 0 has none itself.
        """
        for tensor in (*module.parameters(), *module.buffers()):
            if isinstance(tensor, DTensor) or id(tensor) in self._done:
                continue
            if tensor.is_meta:
                tensor = self._with_memory(tensor)
            self._done.add(id(tensor))
            sent = tensor.detach().to(self._group.device)
            dist.broadcast(sent, src=0)
            if self._group.rank:
                tensor.copy_(sent)

    def _with_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(tensor, device="cpu")
        if self._group.rank == 0:
            if self._fill is None:
                raise ConfigError(
                    "rank 0's model has no weights (torch.device('meta')): build it whole on rank 0, which sends it, "
                    "or write init_from"
                )
            self._fill(tensor, made)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        for names, name in self._places[id(tensor)]:  # shared weights have several
            names[name] = made
        return made


def move_unsharded(module: nn.Module, device: torch.device) -> None:
    """Moves buffers and frozen parameters.

    The rest moves to the device block by block, and never is there as a whole.
    """
    moved: dict[int, torch.Tensor] = {}
    for submodule in module.modules():
        for name, buffer in submodule.named_buffers(recurse=False):
            setattr(submodule, name, moved.setdefault(id(buffer), buffer.to(device)))
        for parameter in submodule.parameters(recurse=False):
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(device)


def new_world_group() -> dist.ProcessGroup:
    """Returns a further process group of all ranks, whose collectives have an order of their own."""
    group = dist.new_group()
    # torch returns a marker object to ranks outside of the group; all ranks are inside.
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError("new_group over all ranks returned no group")
    return group
