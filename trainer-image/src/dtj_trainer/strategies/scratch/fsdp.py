"""The strategy `fsdp_scratch` and its options.

The sharded model itself is in fsdp_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from dtj_trainer.communication import CASTS, CommunicationConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.blocks import blocks
from dtj_trainer.strategies.cpu_offload import CpuOffload, check_cpu_offload, offload_of
from dtj_trainer.strategies.scratch.fsdp_model import ScratchFsdpModel
from dtj_trainer.strategies.scratch.sharded_model import ShardedStrategy


@dataclass(kw_only=True, slots=True)
class FsdpScratchConfig:
    """Options of `fsdp_scratch`."""

    cpu_offload: CpuOffload = False
    """True or all: shards, gradients and optimizer state live in host memory; only whole weights are
    on the device, and each gathering copies the shard there. optimizer: the optimizer's state and
    its own copy of the shard live in host memory, where it steps; the shard that is gathered and the
    gradients stay on the device, and each is copied once a step."""
    reduce_every_micro_batch: bool = False
    """As in `fsdp`: gradients are sent more often, and never kept whole."""

    def __post_init__(self) -> None:
        check_cpu_offload(self.cpu_offload)


class FsdpScratch(ShardedStrategy[ScratchFsdpModel]):
    """The strategy `fsdp_scratch`.

    Without `reduce_every_micro_batch`, whole gradients stay on each rank until a step's last micro-batch.
    """

    name = "fsdp_scratch"

    def __init__(
        self,
        config: FsdpScratchConfig | None = None,
        pattern: str | None = None,
        communication: CommunicationConfig | None = None,
    ) -> None:
        self.config = config or FsdpScratchConfig()
        self._sent_dtype = CASTS[communication.method] if communication else None
        self.reduce_every_micro_batch = self.config.reduce_every_micro_batch
        self._block_pattern = pattern

    def wrap(self, model: nn.Module, group: Group) -> ScratchFsdpModel:
        """Shards the model, block by block."""
        offload = offload_of(self.config.cpu_offload)
        return ScratchFsdpModel(
            model, group, blocks(model, self._block_pattern), offload=offload, sent_dtype=self._sent_dtype
        )

    @contextmanager
    def accumulate(self, model: ScratchFsdpModel, last: bool) -> Iterator[None]:
        """Wraps one micro-batch's forward and backward. Each one that sends, sends the same on all ranks."""
        with super().accumulate(model, last):
            yield
            model.end_micro_batch()

    def zero_grad(self, model: ScratchFsdpModel, optimizer: Optimizer) -> None:
        """Clears gradients of the shards, and what is left of a backward that an exception ended."""
        model.discard_gradients()
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
