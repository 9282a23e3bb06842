"""Activation checkpointing: blocks drop their activations and recompute them in backward. Memory for time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

Recompute = Literal["none", "block", "selective"]
_aten = torch.ops.aten
_EXPENSIVE = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten.convolution.default,
]


def checkpoint_activations(blocks: list[nn.Module], mode: Recompute) -> None:
    """Changes each block's forward in place; names and state dicts stay as they are.

    `block` keeps only a block's input. `selective` also keeps what is expensive to recompute:
    matrix products and attention.
    """
    for block in blocks if mode != "none" else []:
        options: dict[str, Any] = {"use_reentrant": False}
        if mode == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _EXPENSIVE)
        block.forward = _recomputed(block.forward, options)


def _recomputed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **options, **kwargs)

    return checkpointed
