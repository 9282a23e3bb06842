"""The interface of a method that sends less than the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Waiting = Callable[[], AbstractContextManager[object]]
"""Returns a context in which the host does nothing but wait for a collective."""


class Place(Protocol):
    """This rank's place in the default group, as a Group has it."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_world_size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One parameter that a method compresses."""

    name: str
    shape: torch.Size
    offset: int
    """Where its elements begin in the flat residual."""
    residual: torch.Tensor
    """A view of the flat residual, in the parameter's shape."""

    @property
    def matrix(self) -> torch.Tensor:
        """The residual as a matrix: the first dimension by all others."""
        return self.residual.view(self.shape[0], -1)


class Compressor(ABC):
    """Replaces the gradients of its items by the mean over the ranks of what each rank sends.

    A rank sends this step's gradient and the residual, which is all that earlier steps have not sent. Afterwards the
    residual is what is still to be sent. Nothing is ever lost: over any number of steps, the sum of what arrived and
    the mean of the residuals equal the mean gradients added up (Karimireddy et al. 2019, "Error Feedback Fixes
    SignSGD"). All ranks get the same bits.
    """

    def __init__(self, group: Place) -> None:
        self.group = group
        self.waiting: Waiting = nullcontext
        self.items: Sequence[Item] = ()
        self.flat = torch.empty(0)
        """The residual of all items, fp32."""

    def accepts(self, name: str, shape: torch.Size) -> bool:
        """Returns whether a parameter of this name and shape gets smaller."""
        return True

    def prepare(self, items: Sequence[Item], flat: torch.Tensor) -> None:
        """Takes the items, once, in the order of the model's parameters."""
        self.items, self.flat = items, flat

    def begin(self, items: Sequence[Item], gradients: Sequence[torch.Tensor]) -> None:
        """Begins to send the items of one bucket, which all ranks fill in the same order; no residual changes yet."""
        del items, gradients  # most methods send all items at once

    def discard(self) -> None:
        """Forgets what `begin` has begun: an exception has ended the backward."""
        return

    @abstractmethod
    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Sends the gradients and the residuals of all items; a collective.

        Args:
            gradients: The gradient of each item, which is overwritten by what has arrived.
            step: The number of the step, counted from the first one that is compressed.
        """

    def collect(self, gradients: Sequence[torch.Tensor]) -> None:
        """Adds the gradients to the residuals, which then hold all that is to be sent."""
        for item, gradient in zip(self.items, gradients, strict=True):
            item.residual.add_(gradient)

    @abstractmethod
    def sent_bytes(self, step: int) -> int:
        """Returns the bytes that this rank passes to the collectives for its items in a step."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what is kept besides the residual, the same on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` returned, as far as it fits: without it the next steps are a little less exact."""
        del state  # most methods have none
