"""Tensors laid end to end in a few flat buffers, so that one collective moves many of them. Views, so nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn


@dataclass(slots=True, eq=False)
class Bucket:
    """Parameters whose gradients are views into one flat buffer."""

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    views: list[torch.Tensor]
    waiting: set[int] = field(default_factory=set)
    """Places in `parameters` of the gradients that are still to come in this backward."""
    work: dist.Work | None = field(default=None, repr=False)
    """The collective in flight."""

    def attach(self) -> None:
        """Makes the views the parameters' gradients again, zeroed."""
        self.flat.zero_()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


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
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
        out.append(Bucket(group, flat, views_of(flat, group)))
    return out
