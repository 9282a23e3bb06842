"""Ranks that train alone for some steps, then take the mean of their weights: for slow links.

`every` steps apart the weights are exchanged, so that a step sends 1/`every` of what DDP sends. With
`outer_lr` 1 and `outer_momentum` 0 the new weights are the mean (Stich 2019, "Local SGD Converges Fast and
Communicates Little"). Else the change since the last exchange is the gradient of an outer step of SGD with
Nesterov momentum (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models",
algorithm 1: 0.7 and 0.9).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.torch_private import step_without_hooks

BUCKET_ELEMENTS = 1 << 24
"""An exchange copies so many elements at once, so that it needs little memory of its own."""


@dataclass(kw_only=True, slots=True)
class LocalSgdConfig:
    """Options of the exchanges; the optimizer, its schedule and clipping are each rank's own."""

    every: int = 16
    """Steps between two exchanges."""
    outer_lr: float = 1.0
    """The part of the mean change that is taken; DiLoCo: 0.7."""
    outer_momentum: float = 0.0
    """Nesterov momentum of the outer steps; DiLoCo: 0.9."""
    average_moments: bool = True
    """Exchange the optimizer's running means too, which AdamW has two of: a rank that resumes has the
    state of all. With false a resumed run has rank 0's on all ranks."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"strategy.every={self.every}: write the steps between two exchanges, 1 or more")
        if not 0 < self.outer_lr <= 2:
            raise ConfigError(f"strategy.outer_lr={self.outer_lr}: write a number above 0 and at most 2")
        if not 0 <= self.outer_momentum < 1:
            raise ConfigError(f"strategy.outer_momentum={self.outer_momentum}: write 0 or more and less than 1")

    @property
    def is_mean(self) -> bool:
        """Whether an exchange gives the mean of the weights."""
        return self.outer_lr == 1 and self.outer_momentum == 0


class LocalSgd:
    """The strategy `local_sgd`.

    All ranks have the same bits after an exchange. One comes before every validation, save and end, so that these
    see one model.
    """

    name = "local_sgd"

    def __init__(self, config: LocalSgdConfig | None = None) -> None:
        self.config = config or LocalSgdConfig()
        self.steps = 0
        """Steps done, all of the run's."""
        self._exchanged_at = 0
        self._world_size = 1
        self._named: dict[str, nn.Parameter] = {}
        self._anchors: dict[str, torch.Tensor] | None = None
        """The weights after the last exchange."""
        self._momentum: dict[str, torch.Tensor] = {}
        self._optimizer: Optimizer | None = None

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """Moves the model to the group's device; all ranks begin with rank 0's weights."""
        model = model.to(group.device)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        self._world_size = group.world_size
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Sends no gradients; keeps the first weights of this process for the outer steps."""
        del model, last
        if self._anchors is None and not self.config.is_mean:
            # Only now has a resumed run loaded its weights.
            self._anchors = {name: p.detach().clone() for name, p in self._named.items()}
        return nullcontext()

    def finish(self, model: nn.Module) -> None:
        """Leaves the gradients as they are: each rank's optimizer takes its own."""
        del model

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """Clips this rank's gradients."""
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """Returns None: steps without an exchange send nothing."""
        del model
        return None

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Clears the gradients."""
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)

    def step_done(self, optimizer: Optimizer) -> None:
        """Counts an optimizer step, and exchanges the weights after every `every` of them."""
        self.steps += 1
        self._optimizer = optimizer
        if self.steps % self.config.every == 0:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Gives all ranks the same weights and running means; a collective. Once in a step."""
        if self._exchanged_at == self.steps:
            return
        self._exchanged_at = self.steps
        if self._world_size == 1 and self.config.is_mean:
            return
        weights = list(self._named.values())
        if self.config.average_moments and self._optimizer is not None:
            self._begin_states(self._optimizer)
        self._average([*weights, *(self._moments() if self.config.average_moments else ())])
        if self._anchors is None:
            return
        for name, weight in self._named.items():
            anchor = self._anchors[name]
            change = anchor - weight
            momentum = self._momentum.setdefault(name, torch.zeros_like(anchor))
            momentum.mul_(self.config.outer_momentum).add_(change)
            anchor.sub_(change.add_(momentum, alpha=self.config.outer_momentum), alpha=self.config.outer_lr)
            weight.copy_(anchor)

    def before_save(self) -> None:
        """Exchanges the weights, so that a checkpoint holds the state of all ranks."""
        self.exchange()

    def state_dict(self) -> dict[str, Any]:
        """Returns the steps and the outer momentum, which are the same on all ranks."""
        return {"steps": self.steps, "momentum": {name: each.cpu() for name, each in self._momentum.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` returned."""
        self.steps = self._exchanged_at = state["steps"]
        saved: dict[str, torch.Tensor] = state["momentum"]
        self._momentum = {name: saved[name].to(p.device) for name, p in self._named.items() if name in saved}
        self._anchors = None

    def _begin_states(self, optimizer: Optimizer) -> None:
        """Begins the state of parameters that other ranks have trained and this one has not; a collective.

        A rank whose batches have left out a branch of the model would have fewer tensors to exchange than the others.
        """
        parameters = list(self._named.values())
        here = torch.tensor([bool(optimizer.state.get(p)) for p in parameters], dtype=torch.uint8)
        anywhere = here.to(parameters[0].device, copy=True)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        lacking = {p for p, mine, some in zip(parameters, here.tolist(), anywhere.tolist(), strict=True) if some > mine}
        if not lacking:
            return
        # A step with these parameters alone that changes no weight, as torch itself begins states to load into.
        gradients = [p.grad for p in parameters]
        options = [dict(group) for group in optimizer.param_groups]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter in lacking else None
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        step_without_hooks(optimizer)
        for group, before in zip(optimizer.param_groups, options, strict=True):
            group.update(before)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def _average(self, tensors: list[torch.Tensor]) -> None:
        for alike in _buckets(tensors):
            whole = torch.cat([each.reshape(-1) for each in alike])
            dist.all_reduce(whole.div_(self._world_size))
            for each, mean in zip(alike, whole.split_with_sizes([t.numel() for t in alike]), strict=True):
                each.copy_(mean.view(each.shape))

    def _moments(self) -> Iterator[torch.Tensor]:
        """Yields the optimizer's tensors that are like a parameter, in the same order on all ranks."""
        states = {} if self._optimizer is None else self._optimizer.state
        for parameter in self._named.values():
            for _, value in sorted(states.get(parameter, {}).items()):
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.is_floating_point():
                    yield value


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields runs of tensors of one type, in order, each as large as a bucket unless one tensor is larger."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.numel() > BUCKET_ELEMENTS):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket
