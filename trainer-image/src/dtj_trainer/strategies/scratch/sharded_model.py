"""The half that models in flat parameter groups share: their optimizer sees shards, and so does a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.flat_shard import StateDict
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.initial_weights import move_unsharded
from dtj_trainer.strategies.scratch.base import M, ScratchModel, ScratchStrategy
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup
from dtj_trainer.strategies.scratch.fsdp_state import ShardedState

log = logging.getLogger(__name__)


class ShardedModel(ScratchModel):
    """A module whose trained parameters lie in flat groups. Its `parameters()` are the shards of this rank.

    Parameters that are not trained stay whole on each rank.
    """

    flat_groups: list[FlatParamGroup]

    def __init__(self, module: nn.Module, group: Group) -> None:
        super().__init__(group)
        self.inner = (module,)  # in a tuple: not a submodule
        self._group = group
        self._warned = False
        move_unsharded(module, group.device)
        for tensor in (*self.unregistered_tensors().values(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        self.names = {id(p): n for n, p in module.named_parameters()}
        """Names of the parameters in the module, by their id."""

    def set_groups(self, flat_groups: list[FlatParamGroup]) -> None:
        """Registers the shards of all groups as this model's parameters."""
        module = self.inner[0]
        self.flat_groups = flat_groups
        self.shards = nn.ParameterList([g.shard for g in flat_groups])
        persistent = module.state_dict().keys()  # other buffers are in no checkpoint
        unsharded = self.unregistered_tensors() | {n: b for n, b in module.named_buffers() if n in persistent}
        # Shared weights have several names.
        every = module.named_parameters(remove_duplicate=False)
        aliases = {n: self.names[id(p)] for n, p in every if n != self.names[id(p)]}
        self._state = ShardedState(flat_groups, unsharded, aliases)

    def train(self, mode: bool = True) -> ShardedModel:
        """Passes the mode on to the module, which is not registered here."""
        super().train(mode)
        self.inner[0].train(mode)
        return self

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        """Yields this model and the module's own submodules."""
        yield self
        yield from self.inner[0].modules(remove_duplicate)

    def named_buffers(self, *args: object, **kwargs: object) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the module's buffers."""
        return self.inner[0].named_buffers(*args, **kwargs)  # type: ignore[arg-type]

    def discard_gradients(self) -> None:
        """Drops all that is left of a backward, also of one that an exception ended; the next step begins."""
        raise NotImplementedError

    def used_anywhere(self) -> dict[FlatParamGroup, bool]:
        """Returns whether some rank has a gradient for a group; a collective.

        Warns once of parameters that only count as zero.
        """
        flags = [index in g.used for g in self.flat_groups for index in range(len(g.parameters))]
        with self.comm_timer.waiting():
            anywhere = iter(self._group.gather(torch.tensor(flags, dtype=torch.uint8)).amax(0).tolist())
        used = {g: [bool(next(anywhere)) for _ in g.parameters] for g in self.flat_groups}
        if not self._warned:
            partly = [pair for g, row in used.items() if any(row) for pair in zip(g.names, row, strict=True)]
            if unused := [name for name, is_used in partly if not is_used]:
                self._warned = True
                names = ", ".join(unused[:3])
                log.warning("no gradient for %s: it counts as zero, which AdamW decays; write strategy fsdp", names)
        return {flat_group: any(row) for flat_group, row in used.items()}

    @property
    def shard_place(self) -> tuple[int, int]:
        """How many shards there are, and which of them this rank holds."""
        return self._group.world_size, self._group.rank

    def shard_runs(self) -> dict[int, tuple[int, int]]:
        """Returns where each shard begins in its group, and the elements of the group, by the shard's id."""
        rank = self._group.rank
        return {id(g.shard): (rank * g.shard.numel(), sum(p.numel() for p in g.parameters)) for g in self.flat_groups}

    def unregistered_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the parameters that are not trained: each rank holds them whole."""
        return {n: p for n, p in self.inner[0].named_parameters() if not p.requires_grad}

    def discard_gathered(self) -> None:
        """Drops what was gathered from the shards, which are about to change."""
        for flat_group in self.flat_groups:
            flat_group.shard_changes()

    def portable_state_dict(self) -> StateDict:
        """Returns the module's state in shards."""
        return self._state.model()

    def load_portable_state_dict(self, state: StateDict) -> None:
        """Loads what `portable_state_dict` returned."""
        self._state.load_model(state)

    def portable_optimizer_state(self, optimizer: Optimizer) -> StateDict:
        """Returns the optimizer's state in shards."""
        return self._state.optimizer(optimizer)

    def load_portable_optimizer_state(self, optimizer: Optimizer, state: StateDict) -> None:
        """Loads what `portable_optimizer_state` returned."""
        self._state.load_optimizer(optimizer, state)


class ShardedStrategy(ScratchStrategy[M]):
    """Clips and clears gradients of which each rank has a shard."""

    def clip(self, model: M, max_norm: float) -> torch.Tensor:
        """Clips by the norm over the whole model: the root of all ranks' squares added up."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        # Zero where no rank has a gradient: a collective must have a tensor.
        squares = [g.double().square().sum() for g in gradients] or [torch.zeros((), dtype=torch.float64)]
        square = torch.stack(squares).sum()
        with model.comm_timer.counting(), model.comm_timer.waiting():
            dist.all_reduce(square)
        norm = square.sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm
