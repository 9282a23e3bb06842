"""The strategies `zero1` and `zero2`, and their options.

The model itself is in zero_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from dtj_trainer.communication import CASTS, CommunicationConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.scratch.sharded_model import ShardedStrategy
from dtj_trainer.strategies.scratch.zero_model import ZeroModel


@dataclass(kw_only=True, slots=True)
class Zero1Config:
    """Options of `zero1`."""

    bucket_cap_mb: float = 25.0

    def __post_init__(self) -> None:
        if self.bucket_cap_mb <= 0:
            raise ConfigError(f"strategy.bucket_cap_mb={self.bucket_cap_mb}: write megabytes above 0")


@dataclass(kw_only=True, slots=True)
class Zero2Config(Zero1Config):
    """Options of `zero2`."""


class Zero(ShardedStrategy[ZeroModel]):
    """The strategies `zero1` and `zero2`."""

    def __init__(self, config: Zero1Config | None = None, communication: CommunicationConfig | None = None) -> None:
        self.config = config or Zero1Config()
        self._sent_dtype = CASTS[communication.method] if communication else None
        self.reduce_every_micro_batch = isinstance(self.config, Zero2Config)
        self.name = "zero2" if self.reduce_every_micro_batch else "zero1"

    def wrap(self, model: nn.Module, group: Group) -> ZeroModel:
        """Lays the weights end to end in buckets on the group's device."""
        keep = not self.reduce_every_micro_batch
        size = self.config.bucket_cap_mb
        return ZeroModel(model, group, size, keep_gradients=keep, sent_dtype=self._sent_dtype)

    @contextmanager
    def accumulate(self, model: ZeroModel, last: bool) -> Iterator[None]:
        """Wraps one micro-batch's forward and backward. Each micro-batch that sends, sends every bucket once."""
        if sends := last or self.reduce_every_micro_batch:
            model.begin_micro_batch()
        with super().accumulate(model, last):
            yield
            if sends:
                model.send_rest()

    def zero_grad(self, model: ZeroModel, optimizer: Optimizer) -> None:
        """Clears the gradients of the shards, and gathers the weights that the step has changed."""
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
        model.discard_gradients()
