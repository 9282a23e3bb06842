"""The shared half of the two strategies from scratch: `wrap`, `clip` and `zero_grad` are left to each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.comm_timer import CommStats, CommTimer
from dtj_trainer.distributed.process_group import Group


class ScratchModel(nn.Module):
    """A wrapped model whose gradients are the mean over all ranks once `finish` has returned."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.synchronize = True
        """False during micro-batches that only accumulate."""
        self.comm_timer = CommTimer(group)

    def finish(self) -> None:
        """Waits until every gradient of the step is reduced."""
        raise NotImplementedError


M = TypeVar("M", bound=ScratchModel)


class ScratchStrategy(ABC, Generic[M]):
    """Implements Strategy for the models of one class."""

    name: str
    reduce_every_micro_batch = False
    """True: each micro-batch of a step sends its gradients, not only the last one."""

    @abstractmethod
    def wrap(self, model: nn.Module, group: Group) -> M:
        """Returns the model to call, on the group's device."""

    @abstractmethod
    def clip(self, model: M, max_norm: float) -> torch.Tensor:
        """Scales the gradients down to `max_norm`. Returns the norm before."""

    @abstractmethod
    def zero_grad(self, model: M, optimizer: Optimizer) -> None:
        """Clears the gradients before the next step's first backward."""

    @contextmanager
    def accumulate(self, model: M, last: bool) -> Iterator[None]:
        """Wraps one micro-batch's forward and backward, and times the collectives inside."""
        model.synchronize = last or self.reduce_every_micro_batch
        try:
            with model.comm_timer.counting():
                yield
        finally:
            model.synchronize = True

    def finish(self, model: M) -> None:
        """Waits until every gradient has arrived."""
        model.finish()

    def comm_stats(self, model: M) -> CommStats | None:
        """Returns the means per step since the last call."""
        return model.comm_timer.pop_stats()
