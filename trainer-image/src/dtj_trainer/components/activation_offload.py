"""Activation offload: blocks keep what their backward needs in host memory. Device memory for copies.

Beside activation checkpointing, which keeps less: with `recompute: block` only the inputs of blocks
are left to be moved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from dtj_trainer.strategies.cpu_offload import to_host

log = logging.getLogger(__name__)

DEVICES = ("cuda",)
"""Kinds of devices whose memory is apart from the host's."""
MIN_BYTES = 2**16
"""Smaller tensors stay on the device: the copies would cost more than the memory is worth."""

_OnHost = tuple[torch.device, torch.Tensor]


def offload_activations(blocks: list[nn.Module], device: torch.device) -> bool:
    """Changes each block's forward in place; names and state dicts stay as they are.

    Call it after `checkpoint_activations`. Returns False, with a line in the log, where a block's
    tensors are in host memory already: nothing is changed there.
    """
    if device.type not in DEVICES:
        log.info("activation_offload: the model is on the %s, so that nothing has to be moved", device.type)
        return False
    for block in blocks:
        block.forward = _offloaded(block, block.forward)
    return True


def _offloaded(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def offloaded(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # Weights are on the device anyway, and a sharded model gathers them again for backward.
        held = (*block.parameters(), *block.buffers())
        weights = {t.untyped_storage().data_ptr() for t in held if not isinstance(t, DTensor)}
        with saved_tensors_hooks(partial(_pack, weights), _unpack):
            return forward(*args, **kwargs)

    return offloaded


def _pack(weights: set[int], tensor: torch.Tensor) -> torch.Tensor | _OnHost:
    small = tensor.numel() * tensor.element_size() < MIN_BYTES
    if small or tensor.device.type not in DEVICES or tensor.untyped_storage().data_ptr() in weights:
        # Detached: an output that its own node keeps would never be freed.
        return tensor.detach()
    return tensor.device, to_host(tensor)


def _unpack(packed: torch.Tensor | _OnHost) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    device, tensor = packed
    # Both copies are in the order of the device's stream: the host waits for neither.
    return tensor.to(device, non_blocking=True)
