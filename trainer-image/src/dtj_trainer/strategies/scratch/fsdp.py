"""The strategy `fsdp_scratch`: its options and its clipping.

The sharded model itself is in fsdp_model.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.blocks import blocks
from dtj_trainer.strategies.scratch.base import ScratchStrategy
from dtj_trainer.strategies.scratch.fsdp_model import ScratchFsdpModel


@dataclass(kw_only=True, slots=True)
class FsdpScratchConfig:
    """Options of `fsdp_scratch`."""

    cpu_offload: bool = False
    """Shards, gradients and optimizer state live in host memory; only whole weights are on the device."""
    reduce_every_micro_batch: bool = False
    """As in `fsdp`: gradients are sent more often, and never kept whole."""


class FsdpScratch(ScratchStrategy[ScratchFsdpModel]):
    """The strategy `fsdp_scratch`.

    Without `reduce_every_micro_batch`, whole gradients stay on each rank until a step's last micro-batch.
    """

    name = "fsdp_scratch"

    def __init__(self, config: FsdpScratchConfig | None = None, pattern: str | None = None) -> None:
        self.config = config or FsdpScratchConfig()
        self.reduce_every_micro_batch = self.config.reduce_every_micro_batch
        self._block_pattern = pattern

    def wrap(self, model: nn.Module, group: Group) -> ScratchFsdpModel:
        """Shards the model, block by block."""
        return ScratchFsdpModel(model, group, blocks(model, self._block_pattern), offload=self.config.cpu_offload)

    def clip(self, model: ScratchFsdpModel, max_norm: float) -> torch.Tensor:
        """Clips by the norm over the whole model: the root of all ranks' squares added up."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        square = torch.stack([g.double().square().sum() for g in gradients]).sum()
        with model.comm_timer.counting(), model.comm_timer.waiting():
            dist.all_reduce(square)
        norm = square.sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def zero_grad(self, model: ScratchFsdpModel, optimizer: Optimizer) -> None:
        """Clears gradients of the shards, and what is left of a backward that an exception ended."""
        model.discard_gradients()
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
