"""Times real steps with given settings, on a copy of the model, with the run's strategy, group and data."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dtj_trainer import strategies
from dtj_trainer.components.activation_checkpoint import checkpoint_activations
from dtj_trainer.components.activation_offload import offload_activations
from dtj_trainer.components.optimizer import make_optimizer
from dtj_trainer.components.precision import Precision
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import BatchPartition, StreamOrder, batches
from dtj_trainer.data.nested import to_device
from dtj_trainer.data.order import DataOrder
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, StrategyConfig
from dtj_trainer.task import Loss, Task
from dtj_trainer.torch_private import step_without_hooks
from dtj_trainer.tuning.search import Settings

SETTLING_STEPS = 2
MOST_SETTLING_STEPS = 32
TIMED_SECONDS = 1.0
FEWEST_STEPS, MOST_STEPS = 5, 30


def with_buckets(strategy: StrategyConfig, settings: Settings) -> StrategyConfig:
    """Returns the strategy's config with the bucket size of `settings`, if that is tuned."""
    if settings.bucket_cap_mb is None or not isinstance(strategy, (DdpConfig, DdpScratchConfig)):
        return strategy
    return replace(strategy, bucket_cap_mb=settings.bucket_cap_mb)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Takes steps for their time only: weights, data order and random numbers of the run stay as they are."""

    task: Task
    loss: Loss
    config: TrainerConfig
    strategy: StrategyConfig
    group: Group
    order: DataOrder | StreamOrder

    def seconds(self, settings: Settings) -> float:
        """Returns the seconds of a step on the slowest rank; a collective."""
        steps = self._steps(settings)
        try:
            for _ in range(self._settling_steps(settings)):
                next(steps)
            self._wait()
            began = time.perf_counter()
            next(steps)
            self._wait()
            # All ranks take the same number of steps, because a step is a collective.
            first: float = self.group.from_first(time.perf_counter() - began)
            count = min(max(int(TIMED_SECONDS / max(first, 1e-6)), FEWEST_STEPS), MOST_STEPS)
            began = time.perf_counter()
            for _ in range(count):
                next(steps)
            self._wait()
            mine = (time.perf_counter() - began) / count
        finally:
            steps.close()  # ends the loader's workers
            gc.collect()
        return float(self.group.gather(torch.tensor(mine, dtype=torch.float64)).max())

    def _settling_steps(self, settings: Settings) -> int:
        # Batches that were fetched before the first step would make loading look free.
        ahead = settings.workers * settings.prefetch
        per_step = len(self._partition(settings).micro_batches())
        return min(SETTLING_STEPS + -(-ahead // per_step), MOST_SETTLING_STEPS)

    def _partition(self, settings: Settings) -> BatchPartition:
        size = settings.micro_batch_size or self.config.micro_batch_size
        return BatchPartition(
            global_batch_size=self.order.size,
            rank=self.group.rank,
            world_size=self.group.world_size,
            micro_batch_size=size if isinstance(size, int) else None,
        )

    def _steps(self, settings: Settings) -> Generator[None]:
        config, group, task = self.config, self.group, self.task
        model = copy.deepcopy(task.model)
        blocks = strategies.blocks(model, config.blocks)
        checkpoint_activations(blocks, config.recompute)
        if config.activation_offload:
            offload_activations(blocks, group.device)
        strategy = strategies.make(
            with_buckets(self.strategy, settings), config.blocks, config.communication, strategies.stand_in
        )
        wrapped: nn.Module = strategy.wrap(model, group)
        optimizer = task.optimizer(wrapped) if task.optimizer else make_optimizer(wrapped, config.optimizer)
        precision = Precision(config.precision, group)
        for micro_batches in self._batches(settings):
            for number, (batch, _) in enumerate(micro_batches):
                with strategy.accumulate(wrapped, last=number + 1 == len(micro_batches)):
                    with precision.autocast():
                        value = self.loss(wrapped, to_device(batch, group.device))
                    torch.autograd.backward(value * (precision.loss_scale / len(micro_batches)))
            strategy.finish(wrapped)
            if precision.unscale(wrapped, optimizer):
                step_without_hooks(optimizer)
            strategy.zero_grad(wrapped, optimizer)
            yield

    def _batches(self, settings: Settings) -> Iterator[list[tuple[Any, int]]]:
        """Yields the micro-batches of step after step. A stream that ends begins again."""
        loader = replace(self.config.data, workers=settings.workers, prefetch=settings.prefetch)
        while True:
            taken = 0
            try:
                for step in batches(
                    self.task.data, self.order, self._partition(settings), loader, seed=self.config.seed
                ):
                    taken += 1
                    yield step
            except ConfigError:
                if not taken:
                    raise

    def _wait(self) -> None:
        if self.group.device.type == "cuda":
            torch.cuda.synchronize(self.group.device)
