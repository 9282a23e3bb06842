"""`micro_batch_size: auto`, tried by real steps that nobody waits for.

A rank that runs out of memory in the middle of a step leaves the others waiting in a collective. So a size is tried on a copy
of the model, wrapped by the run's own strategy, in a group of the same size in which nothing is sent (torch's `fake` backend):
weights are sharded, gathered and freed as in the run, only the values are not the other ranks'. Between two tries the ranks
tell each other how it went and go on with the same size; that is the only thing they wait for, and it has the group's timeout.
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dtj_trainer import strategies
from dtj_trainer.checkpoint import rng
from dtj_trainer.components.activation_checkpoint import checkpoint_activations
from dtj_trainer.components.batch_size import fits, largest_that_fits, with_headroom
from dtj_trainer.components.precision import Precision
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.nested import first, to_device
from dtj_trainer.distributed.device_memory import at_most, device_bytes, resident_bytes
from dtj_trainer.distributed.process_group import FakeGroup, Group
from dtj_trainer.torch_private import fake_process_group

log = logging.getLogger(__name__)


def optimizer_copies(config: TrainerConfig) -> int:
    """Tensors that there will be for each parameter beside its gradient: the optimizer's state, averaged weights."""
    own = {"adamw": 2, "sgd": 1 if config.optimizer.momentum else 0}[config.optimizer.name]
    return own + (config.ema_decay is not None)


def micro_batch_size(
    model: nn.Module,
    share: Any,
    loss: Callable[[nn.Module, Any], torch.Tensor],
    *,
    config: TrainerConfig,
    strategy: strategies.StrategyConfig,
    group: Group,
    precision: Precision,
) -> int:
    """The largest micro-batch that fits on every rank, 0.9 of it where that is less than a whole share; a collective.

    `share`: a batch of this rank's share of a step. Raises ConfigError if not even one sample fits on some rank.
    """
    limit = -(-config.global_batch_size // group.world_size)  # the largest share: ranks must try the same sizes
    held_per_parameter = optimizer_copies(config)

    # torch's DDP needs answers; alone it is the plain model, whose gradients are as many bytes as the buckets they lie in.
    stage = replace(group, rank=0, world_size=1) if isinstance(strategy, strategies.DdpConfig) else FakeGroup.of(group)

    def attempt(n: int) -> None:
        copied = copy.deepcopy(model)
        checkpoint_activations(strategies.blocks(copied, config.blocks), config.recompute)
        with fake_process_group(group.world_size):
            tried = strategies.make(strategy, config.blocks)
            wrapped = tried.wrap(copied, stage)
            # What will be there too by then, so that it is not found to be missing later.
            local = [p.to_local() if isinstance(p, DTensor) else p for p in wrapped.parameters() if p.requires_grad]
            held = [torch.empty_like(p) for p in local for _ in range(held_per_parameter)]
            for last in (False, True) if n < limit else (True,):  # whole gradients are kept from one micro-batch to the next
                with tried.accumulate(wrapped, last=last):
                    with precision.autocast():
                        value = loss(wrapped, to_device(first(share, n), group.device))
                    torch.autograd.backward(value)
            tried.finish(wrapped)
            del held

    def fits_everywhere(n: int) -> bool:
        return bool(group.gather(torch.tensor(fits(lambda n: thread.submit(attempt, n).result(), n))).all())

    def ready() -> None:
        if group.device.type == "cuda":
            torch.cuda.set_device(group.device)
        torch.autograd.backward(torch.zeros((), requires_grad=True))  # its threads have their stacks before memory is short

    drawn = rng.capture()
    # On a CPU the kernel would kill the process. There the model that the copy is made from is in memory only for the search.
    room = strategies.tensor_bytes(model) + device_bytes(group) - resident_bytes() if group.device.type == "cpu" else None
    gc.freeze()  # after each try garbage is looked for, and none is among what was there before
    # torch keeps what it has worked out for a mesh, and takes one of the same shape for the same unless another thread made it:
    # what it learns here must not be used in the run.
    thread = ThreadPoolExecutor(1)
    try:
        thread.submit(ready).result()
        with at_most(room):
            largest = largest_that_fits(fits_everywhere, limit)
    finally:
        thread.shutdown()
        gc.unfreeze()
    rng.restore(drawn)
    if group.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(group.device)  # what is told as used is what the training uses
    found = with_headroom(largest, limit)
    if group.rank == 0:
        log.info("micro_batch_size auto: %d of a share of %d samples", found, limit)
    return found
