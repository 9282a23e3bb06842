"""Gradient compression for DistributedDataParallel on any backend.

torch's own bf16 hook rejects gloo although gloo can add bf16, so this hook replaces it for both
types. This module has no postponed annotations, because DDP reads a hook's annotations as objects.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]


def compress(dtype: torch.dtype) -> Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]:
    """Returns a hook that sends half the bytes: cast, mean over the ranks, cast back into the bucket."""

    def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        full = bucket.buffer()
        half = full.to(dtype).div_(dist.get_world_size())
        work = dist.all_reduce(half, async_op=True)
        if work is None:
            raise RuntimeError("all_reduce(async_op=True) returned no handle: this rank is not in the process group")
        arrived: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: full.copy_(f.value()[0]))
        return arrived

    return hook
