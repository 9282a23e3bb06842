"""What a strategy is: how a model is spread over the ranks and how its gradients come together."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.process_group import Group


class Strategy(Protocol):
    """One way to train a model on a group. After `finish`, every rank's optimizer sees the mean gradient of all ranks."""

    name: str

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        """The model to call, on the group's device. Build the optimizer from its parameters."""
        ...

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Around one micro-batch's forward and backward; gradients travel only if it is the `last` one of the step."""
        ...

    def finish(self, model: nn.Module) -> None:
        """After the last backward: every gradient has arrived."""
        ...

    def clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm over the whole model is at most `max_norm`; gives the norm before."""
        ...

    def comm_stats(self, model: nn.Module) -> CommStats | None:
        """Means per step since the last call; None where it is not measured."""
        ...

    def zero_grad(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Before the next step's first backward."""
        ...


def tensor_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, each counted once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
