"""Changes batches, which are tensors in nested tuples, lists, mappings and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """Returns the batch with its tensors, and anything else that has a `to`, on `device`."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) and not isinstance(leaf, type) else leaf

    return _on_leaves(batch, move)


def first(batch: Any, n: int) -> Any:
    """Returns the first n samples of a batch."""
    return on_tensors(batch, lambda t: t[:n])


def on_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns the batch with `change` applied to every tensor."""
    return _on_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def _on_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    # A PackedSequence is a tuple whose second member stays on the CPU.
    if isinstance(batch, torch.nn.utils.rnn.PackedSequence):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a namedtuple
        return type(batch)(*(_on_leaves(b, change) for b in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_on_leaves(b, change) for b in batch)
    if type(batch) is dict or (isinstance(batch, Mapping) and not isinstance(batch, MutableMapping)):
        return {k: _on_leaves(b, change) for k, b in batch.items()}
    # For example a UserDict, which tokenizers return.
    if isinstance(batch, MutableMapping):
        out = copy.copy(batch)
        for key, value in batch.items():
            out[key] = _on_leaves(value, change)
        return out
    if is_dataclass(batch) and not isinstance(batch, type) and not callable(getattr(batch, "to", None)):
        moved = copy.copy(batch)
        for field in fields(batch):
            object.__setattr__(moved, field.name, _on_leaves(getattr(batch, field.name), change))
        return moved
    return change(batch)
