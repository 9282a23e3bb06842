"""The memory that a rank may use, and has used."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dtj_trainer.distributed.process_group import Group

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_STATM = Path("/proc/self/statm")


def device_bytes(group: Group) -> int:
    """Returns the memory of this rank's device; on the CPU its share of what the container (or the machine) may use."""
    if group.device.type == "cuda":
        return int(torch.cuda.get_device_properties(group.device).total_memory)
    return host_bytes() // max(1, group.local_world_size)


def host_bytes() -> int:
    """Returns the container's memory limit, or the machine's memory where that is less or there is no limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            return min(machine, int(path.read_text()))
        except (OSError, ValueError):  # another cgroup version, or "max"
            continue
    return machine


def peak_bytes(device: torch.device) -> int:
    """Returns the most memory that this rank has had: allocated on the GPU, resident on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """Returns the memory that this process has now."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def at_most(more: int | None) -> Iterator[None]:
    """Makes allocations inside fail that go beyond `more` bytes from now.

    Otherwise the kernel would kill the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(_STATM.read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    if more is not None:
        limits = [used + max(0, more), *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
