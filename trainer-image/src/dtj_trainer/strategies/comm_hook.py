"""The hook by which DistributedDataParallel sends its buckets through a queue of ours.

This module has no postponed annotations, because DDP reads a hook's annotations as objects.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer.communication import CommunicationConfig, GradientQueue, make_queue
from dtj_trainer.distributed import config_check
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError


@dataclass(frozen=True)
class _DefaultGroup:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device


def compress_gradients(model: DistributedDataParallel, config: CommunicationConfig) -> GradientQueue:
    """Makes DDP send its gradients as `config` describes; for a loop of your own, before its first step. A collective.

    Returns the queue, which belongs to the state: `State(model=..., optimizer=..., communication=queue)`.
    Raises ConfigError for a model that can't be sent so, and RankMismatch if the options of the ranks differ.
    """
    reject_sparse(model.module)
    if model.process_group is not dist.group.WORLD:
        raise ConfigError("compress_gradients sends to all ranks: make the model without process_group=")
    # Ranks that send different sizes would wait for each other until the timeout.
    options: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(options, config_check.flatten(config, "communication."))
    config_check.compare(options)
    env = WorkerEnv.read()
    device = next(model.module.parameters()).device
    place = _DefaultGroup(dist.get_rank(), dist.get_world_size(), env.local_rank, env.local_world_size, device)
    queue = make_queue(model.module, place, config)
    model.register_comm_hook(queue, send_bucket)
    return queue


def reject_sparse(model: nn.Module) -> None:
    """Raises ConfigError for a module whose gradients DDP puts into a sparse bucket, which no method can send."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ConfigError(
                f"communication does not work with the sparse gradients of {name or 'the model'} under ddp: write "
                "sparse=False there, strategy ddp_scratch, or communication.method: none"
            )


def send_bucket(queue: GradientQueue, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Puts a bucket into the queue, and ends the step after the last one."""
    if bucket.index() == 0:
        queue.discard()
    arrived = queue.put(bucket.parameters(), bucket.gradients(), bucket.buffer())
    if bucket.is_last():
        queue.finish()
    return arrived
