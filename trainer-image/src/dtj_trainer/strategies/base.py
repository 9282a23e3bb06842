"""The interface of a strategy: how a model is spread over the ranks and how its gradients come together."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.process_group import Group

M = TypeVar("M", bound=nn.Module)


class Strategy(Protocol[M]):
    """A way to train a model on a group.

    After `finish`, every rank's optimizer sees the mean gradient of all ranks.
    """

    name: str

    def wrap(self, model: nn.Module, group: Group) -> M:
        """Returns the model to call, on the group's device.

        Its parameters are those that the optimizer is built from.
        """
        ...

    def accumulate(self, model: M, last: bool) -> AbstractContextManager[object]:
        """Wraps one micro-batch's forward and backward.

        Gradients are sent only if it is the `last` one of the step.
        """
        ...

    def finish(self, model: M) -> None:
        """Waits, after the last backward, until every gradient has arrived."""
        ...

    def clip(self, model: M, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm over the whole model is at most `max_norm`.

        Returns the norm before.
        """
        ...

    def comm_stats(self, model: M) -> CommStats | None:
        """Returns the means per step since the last call; None where nothing is measured."""
        ...

    def zero_grad(self, model: M, optimizer: Optimizer) -> None:
        """Clears the gradients before the next step's first backward."""
        ...


def tensor_bytes(model: nn.Module) -> int:
    """Returns the bytes of all parameters, each counted once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
