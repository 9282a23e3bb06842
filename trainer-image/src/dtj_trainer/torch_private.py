"""Every use of torch that torch may change without notice, in one place; a test names each, and runs with two versions of torch.

torch has no public counterpart of these. `comm/parts.py` has three more, which can't be moved: the methods by which torch's
checkpoints ask a tensor for its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather as DefaultAllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter as DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel


def in_backward() -> bool:
    """Returns whether autograd runs a backward in this thread: a forward then computes activations again."""
    return torch._C._current_graph_task_id() != -1


def unscale(gradients: Iterable[torch.Tensor], scale: float, device: torch.device) -> torch.Tensor:
    """Divides all gradients in place; returns 1 on the device if one of them was not finite, else 0.

    A few kernels over all gradients, and nothing that waits for the device. It is what torch's GradScaler calls.
    """
    found = torch.zeros(1, device=device)
    inverse = torch.full((1,), 1.0 / scale, device=device)
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (place, _), group in alike.items():
        here = found.to(place)  # gradients that are offloaded lie on the host
        torch._amp_foreach_non_finite_check_and_unscale_(group, here, inverse.to(place))
        found = torch.maximum(found, here.to(device))
    return found


def measure_ddp(ddp: DistributedDataParallel, every: int) -> None:
    """Has DDP take the time of one step in `every`."""
    ddp._set_ddp_runtime_logging_sample_rate(every)  # type: ignore[no-untyped-call]


def ddp_times(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Returns what DDP measured of the step before, in nanoseconds."""
    times: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return times


@contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Inside, torch's default group is one of the same size in which nothing is sent, and so are groups made from it."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - registers the backend

    world = distributed_c10d._world
    real, count, groups = world.default_pg, world.group_count, set(world.pg_map)
    try:
        if world_size > 1:
            distributed_c10d._update_default_pg(dist.new_group(backend="fake"))
        yield
    finally:
        distributed_c10d._update_default_pg(real)
        for made in set(world.pg_map) - groups:
            dist.destroy_process_group(made)
        world.group_count = count  # names of later groups are made from it, and must be the same on every rank


def set_compiler(*, cut_at_buckets: bool, graphs: int) -> None:
    """Says whether graphs are cut where a bucket of DDP's ends, and how many graphs one function may have at least."""
    import torch._dynamo  # seconds that only who compiles pays for

    torch._dynamo.config.optimize_ddp = cut_at_buckets
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, graphs)


def write_through(writer: FileSystemWriter, files: Any) -> None:
    """Has torch's writer of checkpoints create its files by `files`, a torch FileSystem."""
    writer.fs = files
