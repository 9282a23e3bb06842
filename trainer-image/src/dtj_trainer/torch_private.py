"""Every use of torch's private API, in one place.

torch may change these without notice, and has no public counterpart. A test names each of them, and
runs with two versions of torch. `distributed/flat_shard.py` has three more, which can't be moved:
the methods by which torch's checkpoints read the shards of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather as DefaultAllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter as DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def in_backward() -> bool:
    """Returns whether a backward runs in this thread, so that a forward recomputes activations."""
    return torch._C._current_graph_task_id() != -1


def unscale(gradients: Iterable[torch.Tensor], scale: float, device: torch.device) -> torch.Tensor:
    """Divides all gradients in place.

    Returns a tensor on the device: 1 if one of them was not finite, else 0.

    A few kernels cover all gradients, and nothing waits for the device. torch's GradScaler calls
    the same function.
    """
    found = torch.zeros(1, device=device)
    inverse = torch.full((1,), 1.0 / scale, device=device)
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (place, _), group in alike.items():
        here = found.to(place)  # offloaded gradients are on the host
        torch._amp_foreach_non_finite_check_and_unscale_(group, here, inverse.to(place))
        found = torch.maximum(found, here.to(device))
    return found


def measure_ddp(ddp: DistributedDataParallel, every: int) -> None:
    """Makes DDP measure one step in `every`."""
    ddp._set_ddp_runtime_logging_sample_rate(every)  # type: ignore[no-untyped-call]


def ddp_times(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Returns DDP's measurements of the previous step, in nanoseconds."""
    times: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return times


@contextmanager
def thread_worlds() -> Iterator[None]:
    """Gives each thread that is started within a default group of its own, as torch's own tests do."""
    # DDP imports it at its first use, and threads that do so at one time find it half imported.
    import torch._dynamo
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    world = distributed_c10d._world
    distributed_c10d._world = ThreadLocalWorld()  # type: ignore[assignment]
    isolate: Callable[[bool], None] = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
    isolate(True)
    try:
        yield
    finally:
        isolate(False)
        distributed_c10d._world = world


@contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Replaces torch's default group, and groups made from it, by groups that send nothing."""
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
        # Names of later groups contain this count, and must be the same on every rank.
        world.group_count = count


def set_compiler(*, cut_at_buckets: bool, graphs: int) -> None:
    """Sets whether DDP's buckets cut graphs, and how many graphs a function may have at least."""
    import torch._dynamo  # takes seconds, so only if needed

    torch._dynamo.config.optimize_ddp = cut_at_buckets
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, graphs)


def write_through(writer: FileSystemWriter, files: Any) -> None:
    """Makes torch's checkpoint writer create its files through `files`, a torch FileSystem."""
    writer.fs = files


def step_without_hooks(optimizer: Optimizer) -> None:
    """Takes a step of which torch's global hooks hear nothing: the agent counts the run's steps by one."""
    step = getattr(type(optimizer).step, "__wrapped__", None)  # the profiler's wrapper calls the hooks
    if step is None:
        optimizer.step()
    else:
        step(optimizer)
