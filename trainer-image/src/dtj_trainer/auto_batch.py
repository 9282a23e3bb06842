"""Finds the size for `micro_batch_size: auto` by real steps that no other rank waits for.

A rank that runs out of memory in the middle of a step leaves the others waiting in a collective.
Therefore each size is tried on a copy of the model, wrapped by the run's own strategy, in a group
of the same size in which nothing is sent (torch's `fake` backend): weights are sharded, gathered
and freed as in the run, only the values are not the other ranks'. Between two tries the ranks
exchange their results and continue with the same size. The ranks wait for nothing else, and this
exchange has the group's timeout.
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dtj_trainer import strategies
from dtj_trainer.checkpoint import rng
from dtj_trainer.components.activation_checkpoint import checkpoint_activations
from dtj_trainer.components.activation_offload import offload_activations
from dtj_trainer.components.batch_size import fits, largest_that_fits, with_headroom
from dtj_trainer.components.precision import Precision
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.nested import first, to_device
from dtj_trainer.distributed.device_memory import at_most, device_bytes, resident_bytes
from dtj_trainer.distributed.process_group import FakeGroup, Group
from dtj_trainer.torch_private import fake_process_group

log = logging.getLogger(__name__)


def optimizer_copies(config: TrainerConfig) -> int:
    """Returns how many tensors per parameter the optimizer's state, averaged weights and residuals take."""
    own = config.optimizer.moments
    return own + (config.ema_decay is not None) + config.communication.keeps_residuals


def find_micro_batch_size(
    model: nn.Module,
    share: Any,
    loss: Callable[[nn.Module, Any], torch.Tensor],
    *,
    config: TrainerConfig,
    strategy: strategies.StrategyConfig,
    group: Group,
    precision: Precision,
) -> int:
    """Returns the largest micro-batch that fits on every rank, times 0.9 unless it is a whole share.

    A collective. Raises ConfigError if not even one sample fits on some rank.

    Args:
        model: The model before the strategy wraps it.
        share: This rank's share of a step, as one batch.
        loss: `loss(model, batch)` returns one number with a gradient.
        config: The run's config.
        strategy: The config of the strategy that will wrap the model.
        group: All ranks of the run.
        precision: The run's precision, for autocast.
    """
    # The largest share of any rank, because all ranks must try the same sizes.
    limit = -(-config.global_batch_size // group.world_size)
    trial = _Trial(
        model=model,
        share=share,
        limit=limit,
        loss=loss,
        config=config,
        strategy=strategy,
        group=group,
        precision=precision,
    )
    random_state = rng.capture()
    # On a CPU the kernel would kill the process, so that the memory is limited here. The model that
    # the copy is made from is in memory only for the search there, and its bytes count as free.
    room = (
        strategies.tensor_bytes(model) + device_bytes(group) - resident_bytes() if group.device.type == "cpu" else None
    )
    # The collection after each try then skips older objects.
    gc.freeze()
    # torch caches its decisions for a mesh per thread, and takes a mesh of the same shape for the
    # same one. A thread of its own keeps the cache entries of the tries out of the run.
    thread = ThreadPoolExecutor(1)

    def fits_everywhere(n: int) -> bool:
        return bool(group.gather(torch.tensor(fits(lambda n: thread.submit(trial.step, n).result(), n))).all())

    try:
        thread.submit(trial.prepare_thread).result()
        with at_most(room):
            largest = largest_that_fits(fits_everywhere, limit)
    finally:
        thread.shutdown()
        gc.unfreeze()
    rng.restore(random_state)
    if group.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(group.device)  # report what the training uses
    found = with_headroom(largest, limit)
    if group.rank == 0:
        log.info("micro_batch_size auto: %d of a share of %d samples", found, limit)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """Takes steps with different micro-batches, on copies of the model and without other ranks."""

    model: nn.Module
    share: Any
    limit: int
    """Samples of the largest share of any rank."""
    loss: Callable[[nn.Module, Any], torch.Tensor]
    config: TrainerConfig
    strategy: strategies.StrategyConfig
    group: Group
    precision: Precision

    def prepare_thread(self) -> None:
        """Starts autograd's threads, so that they have their stacks before memory is short."""
        if self.group.device.type == "cuda":
            torch.cuda.set_device(self.group.device)
        torch.autograd.backward(torch.zeros((), requires_grad=True))

    def step(self, n: int) -> None:
        """Takes one step with micro-batches of `n` samples."""
        copied = copy.deepcopy(self.model)
        blocks = strategies.blocks(copied, self.config.blocks)
        checkpoint_activations(blocks, self.config.recompute)
        if self.config.activation_offload:
            offload_activations(blocks, self.group.device)
        with fake_process_group(self.group.world_size):
            tried = strategies.make(self.strategy, self.config.blocks, fill=strategies.stand_in)
            wrapped = tried.wrap(copied, self._silent_group())
            # The run will hold these tensors too, so that their memory must not be counted as free.
            local = [p.to_local() if isinstance(p, DTensor) else p for p in wrapped.parameters() if p.requires_grad]
            held = [torch.empty_like(p) for p in local for _ in range(optimizer_copies(self.config))]
            # Whole gradients are kept from one micro-batch to the next.
            for last in (False, True) if n < self.limit else (True,):
                with tried.accumulate(wrapped, last=last):
                    with self.precision.autocast():
                        value = self.loss(wrapped, to_device(first(self.share, n), self.group.device))
                    torch.autograd.backward(value)
            tried.finish(wrapped)
            del held

    def _silent_group(self) -> Group:
        # torch's DDP needs answers of other ranks. On one rank it is the plain model, whose
        # gradients are as many bytes as the buckets they lie in.
        if isinstance(self.strategy, strategies.DdpConfig):
            return replace(self.group, rank=0, world_size=1)
        return FakeGroup.of(self.group)
