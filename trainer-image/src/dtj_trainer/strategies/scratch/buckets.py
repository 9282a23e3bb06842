"""Tensors laid end to end in a few flat buffers, so that one collective moves many of them. Views, so nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn


@dataclass(slots=True, eq=False)
class Bucket:
    """Parameters whose gradients are views into one flat buffer.

    Behind the gradients the buffer has a mark for each parameter: above 0 if a rank used the parameter in this step.
    The marks travel with the gradients, so that an unused parameter costs no collective of its own.
    """

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    views: list[torch.Tensor]
    waiting: set[int] = field(default_factory=set)
    """Places in `parameters` of the gradients that are still to come in this backward."""
    used: set[int] = field(default_factory=set)
    """Places of the parameters that got a gradient in this step, in any micro-batch."""
    work: dist.Work | None = field(default=None, repr=False)
    """The collective in flight."""

    def attach(self) -> None:
        """Makes the views the parameters' gradients again, zeroed."""
        self.flat.zero_()
        self.used.clear()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    @property
    def marks(self) -> torch.Tensor:
        """Returns the part of the buffer that says which parameters were used."""
        return self.flat[self.flat.numel() - len(self.parameters) :]

    def mark(self) -> None:
        """Writes this rank's marks, before the buffer is sent."""
        if len(self.used) == len(self.parameters):
            self.marks.fill_(1.0)
        else:
            self.marks.copy_(torch.tensor([float(place in self.used) for place in range(len(self.parameters))]))

    def drop_unused(self) -> None:
        """Takes the gradient from each parameter that no rank used, after the buffer has arrived.

        An optimizer leaves a parameter without gradient alone. One with a gradient of zeros it would decay and move.
        Only a rank that has not used a parameter itself must look at the marks, which on a GPU waits for the device.
        """
        unused = [place for place in range(len(self.parameters)) if place not in self.used]
        if unused:
            marks = self.marks.tolist()
            for place in unused:
                if marks[place] == 0:
                    self.parameters[place].grad = None


def on_gradient(parameter: nn.Parameter, then: Callable[[torch.Tensor], None]) -> None:
    """Calls `then` in each backward, when the parameter's gradient is final."""
    parameter.register_post_accumulate_grad_hook(then)  # type: ignore[no-untyped-call]


def views_of(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`flat` cut into views of the shapes of `like`, in order."""
    out, offset = [], 0
    for tensor in like:
        out.append(flat[offset : offset + tensor.numel()].view(tensor.shape))
        offset += tensor.numel()
    return out


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: int) -> list[Bucket]:
    """Buckets of up to `cap_bytes` in reverse order, about the order in which backward makes the gradients.

    One dtype and device a bucket; a parameter that is bigger than the cap has a bucket for itself.
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
    out = []
    for group in groups:
        flat = torch.zeros(sum(p.numel() for p in group) + len(group), dtype=group[0].dtype, device=group[0].device)
        out.append(Bucket(group, flat, views_of(flat, group)))
    return out
