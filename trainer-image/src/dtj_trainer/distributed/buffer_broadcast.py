"""Running statistics: each rank computes its own in training, and rank 0's are saved and validated."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from dtj_trainer.distributed.process_group import Group


@torch.no_grad()
def broadcast_buffers(module: nn.Module, group: Group) -> None:
    """Gives every rank rank 0's floating-point buffers, by one collective for each dtype and device.

    Masks and counters are the same on every rank already, and a sharded buffer has no first rank.
    """
    if group.world_size == 1:
        return
    for buffers in _alike(b for b in module.buffers() if b.is_floating_point() and not isinstance(b, DTensor)):
        flat = torch.cat([b.reshape(-1) for b in buffers])
        # The default group that a script has made may carry a GPU's tensors alone.
        dist.broadcast(flat, src=0, group=group.control if flat.device.type == "cpu" else None)
        for buffer, values in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
            buffer.copy_(values.view(buffer.shape))


def _alike(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(by_kind.values())
