"""Batches are tensors in nested tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """Tensors in nested tuples, lists and dicts, moved."""
    return on_tensors(batch, lambda t: t.to(device, non_blocking=True))


def first(batch: Any, n: int) -> Any:
    """The first n samples of a batch."""
    return on_tensors(batch, lambda t: t[:n])


def on_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting of tuples, lists and dicts with every tensor changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a namedtuple takes its members one by one
        return type(batch)(*(on_tensors(b, change) for b in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(on_tensors(b, change) for b in batch)
    if isinstance(batch, dict):
        return {k: on_tensors(b, change) for k, b in batch.items()}
    return batch
