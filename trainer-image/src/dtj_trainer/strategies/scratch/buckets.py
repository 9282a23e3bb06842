"""Tensors laid end to end in a few flat buffers, so that one collective moves many of them.

The tensors are views of the buffers, not copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn


@dataclass(slots=True, eq=False)
class Bucket:
    """Parameters whose gradients are views into one flat buffer.

    Behind the gradients the buffer has a mark for each parameter: above 0 if a rank used the
    parameter in this step. The marks travel with the gradients, so that an unused parameter costs
    no collective of its own.
    """

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    views: list[torch.Tensor]
    waiting: set[int] = field(default_factory=set)
    """Indexes into `parameters` of the gradients that are still to come in this backward."""
    used: set[int] = field(default_factory=set)
    """Indexes of the parameters that got a gradient in this step, in any micro-batch."""
    work: dist.Work | torch.futures.Future[torch.Tensor] | None = field(default=None, repr=False)
    """The collective in flight, or the bucket that will have arrived."""

    def attach(self) -> None:
        """Zeroes the buffer and makes its views the parameters' gradients again."""
        self.flat.zero_()
        self.used.clear()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    @property
    def marks(self) -> torch.Tensor:
        """The end of the buffer, which holds the marks."""
        return self.flat[self.flat.numel() - len(self.parameters) :]

    def mark(self) -> None:
        """Writes this rank's marks, before the buffer is sent."""
        if len(self.used) == len(self.parameters):
            self.marks.fill_(1.0)
        else:
            self.marks.copy_(torch.tensor([float(index in self.used) for index in range(len(self.parameters))]))

    def drop_unused(self) -> None:
        """Removes the gradient of each parameter that no rank used, after the buffer has arrived.

        An optimizer skips a parameter without gradient, but would decay and move a parameter whose
        gradient is zeros. Only a rank that has not used a parameter itself must look at the marks,
        which on a GPU waits for the device.
        """
        unused = [index for index in range(len(self.parameters)) if index not in self.used]
        if unused:
            marks = self.marks.tolist()
            for index in unused:
                if marks[index] == 0:
                    self.parameters[index].grad = None


def split_views(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Splits `flat` into views of the shapes of `tensors`, in order."""
    out, offset = [], 0
    for tensor in tensors:
        out.append(flat[offset : offset + tensor.numel()].view(tensor.shape))
        offset += tensor.numel()
    return out


def bucketed(parameters: Sequence[nn.Parameter], cap_bytes: int) -> list[list[nn.Parameter]]:
    """Returns parameters in lists of up to `cap_bytes`.

    The lists are in reverse order, about the order in which backward computes the gradients. A list
    has one dtype and device. A parameter that is bigger than the cap has a list for itself.
    """
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        own = parameter.numel() * parameter.element_size()
        last = groups[-1][-1] if groups else None
        if last is None or size + own > cap_bytes or (last.dtype, last.device) != (parameter.dtype, parameter.device):
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += own
    return groups


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: int) -> list[Bucket]:
    """Returns a bucket for each list of `bucketed`."""
    out = []
    for group in bucketed(parameters, cap_bytes):
        flat = torch.zeros(sum(p.numel() for p in group) + len(group), dtype=group[0].dtype, device=group[0].device)
        out.append(Bucket(group, flat, split_views(flat, group)))
    return out
