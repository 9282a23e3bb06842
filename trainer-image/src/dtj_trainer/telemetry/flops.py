"""Counts the FLOPs of a model without a formula: one forward and backward on the meta device.

Nothing is computed there, so the count takes milliseconds and no memory, whatever the model's size.
torch.utils.flop_counter has the formulas: matrix products, convolutions and attention, two FLOPs
for a multiplication and addition. Work of other operations, and of kernels unknown to torch, is
not in the count.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dtj_trainer.checkpoint import rng
from dtj_trainer.data.nested import on_tensors, to_device

log = logging.getLogger(__name__)


def count_flops(model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor], batch: Any, samples: int) -> float:
    """Returns the FLOPs of forward and backward per sample.

    Random numbers and running statistics stay as they are. Raises what `model` or `loss` raises
    without values, for example where the code branches on a number of a tensor.

    Args:
        model: The model before a strategy wraps it.
        loss: `loss(model, batch)` returns one number with a gradient.
        batch: A batch on any device; two samples or more, if the model has BatchNorm.
        samples: Samples of the batch.
    """
    empty = _without_values(model)
    state = rng.capture()
    try:
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(loss(empty, to_device(on_tensors(batch, _to_meta), torch.device("meta"))))
    finally:
        rng.restore(state)
    return float(counter.get_total_flops()) / samples


def try_count_flops(
    model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor], batch: Any, samples: int
) -> float | None:
    """Returns `count_flops`, or None with a line in the log for a model that can't run without values."""
    try:
        return count_flops(model, loss, batch, samples) or None
    except Exception as e:  # noqa: BLE001 - code of the user, which may raise anything
        log.warning("flops_per_sample=auto: can't count the FLOPs, so mfu is left out: %s", e)
        return None


def _without_values(model: nn.Module) -> nn.Module:
    """Returns a copy whose tensors are on the meta device; shared tensors stay shared, none is copied."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(_to_meta(p.detach()), requires_grad=p.requires_grad) for p in model.parameters()
    }
    memo |= {id(b): _to_meta(b) for b in model.buffers()}
    return copy.deepcopy(model, memo)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")
