"""Hooks on gradients: of parameters, when they are final, and of a module's outputs, just before its own backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook


def on_gradient(parameter: nn.Parameter, then: Callable[[torch.Tensor], None]) -> None:
    """Calls `then` in each backward, when the parameter's gradient is final."""
    parameter.register_post_accumulate_grad_hook(then)  # type: ignore[no-untyped-call]


def before_gradient(parameter: nn.Parameter, then: Callable[[torch.Tensor], None]) -> None:
    """Calls `then` in each backward, just before the parameter's gradient is added to what it has."""
    parameter.register_hook(then)  # type: ignore[no-untyped-call]


def on_output_gradient(output: Any, then: Callable[[torch.Tensor], None]) -> None:
    """Calls `then` when the first gradient of a forward's output arrives.

    The module's own backward comes right after it. The order of the gradients of several outputs is
    not known.
    """
    if outputs := [t for t in _tensors(output) if t.requires_grad]:
        register_multi_grad_hook(outputs, then, mode="any")


def _tensors(output: Any) -> list[torch.Tensor]:
    """Returns the tensors in a forward's output: nested tuples, lists, dicts, dataclasses."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        inside = list(output.values())
    elif isinstance(output, (tuple, list)):
        inside = list(output)
    else:
        inside = [getattr(output, f.name) for f in fields(output)] if is_dataclass(output) else []
    return [t for value in inside for t in _tensors(value)]
