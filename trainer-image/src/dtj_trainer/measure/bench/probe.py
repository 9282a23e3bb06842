"""Measures the collectives of an arm that is not the Trainer: those of DistributedDataParallel and of fully_shard.

The Trainer's strategies measure with the same two means, so that the shares of all arms have one definition.
"""

from __future__ import annotations

from contextlib import ExitStack

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer.distributed.comm_timer import CommStats, CommTimer
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.ddp import DdpTimes
from dtj_trainer.strategies.fsdp import time_collectives


class Probe:
    """Adds up the collectives of one rank in the steps after the warm-up."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._timer = CommTimer(group)
        self._counting = ExitStack()
        self._ddp: DistributedDataParallel | None = None
        self._times = DdpTimes()

    def attach(self, model: nn.Module) -> None:
        """Begins to measure a wrapped model. Other models are not measured."""
        if isinstance(model, DistributedDataParallel) and self._group.world_size > 1:
            self._ddp = model
            self._times.begin(model)
        elif isinstance(model, FSDPModule) and self._timer.enabled:
            time_collectives([one for one in model.modules() if isinstance(one, FSDPModule)], self._timer)
            self._counting.enter_context(self._timer.counting())

    def step_done(self) -> None:
        """Ends a step."""
        if self._ddp is not None:
            self._times.read(self._ddp)
        self._timer.step_done()

    def begin(self) -> None:
        """Drops what the warm-up has added."""
        self._times.pop()
        self._timer.pop_stats()

    def stats(self) -> CommStats | None:
        """Returns the means per step since `begin`; None where nothing is measured."""
        self._counting.close()
        return self._times.pop() if self._ddp is not None else self._timer.pop_stats()
