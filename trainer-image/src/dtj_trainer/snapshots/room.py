"""How much shared memory a pod may still take: the file system's room and the container's limit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_CGROUP2 = Path("/sys/fs/cgroup")
_CGROUP1 = Path("/sys/fs/cgroup/memory")
KEEP_FREE = 0.25
"""The share of the container's limit that snapshots leave free: the training may still grow."""


def free_bytes(directory: Path) -> int:
    """Returns the bytes that snapshots in `directory` may take."""
    usage = os.statvfs(directory)
    return max(0, min(usage.f_bavail * usage.f_frsize, container_bytes(_CGROUP2, _CGROUP1), machine_bytes()))


def container_bytes(version2: Path, version1: Path) -> int:
    """Returns what is left of the container's memory limit; page cache counts as free."""
    for folder, limit, used, cache in (
        (version2, "memory.max", "memory.current", ("inactive_file", "active_file")),
        (version1, "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        try:
            most = int((folder / limit).read_text())
            current = int((folder / used).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            reclaimable = sum(int(size) for name, size in lines if name in cache)
        except (OSError, ValueError):  # another cgroup version, or "max"
            continue
        return int(most * (1 - KEEP_FREE)) - current + reclaimable
    return 1 << 62


def machine_bytes() -> int:
    """Returns half of the memory that the machine has available: others may need the rest."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 512 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 1 << 62


def needs(rows: Sequence[tuple[int, int, int]], share: bool) -> Iterator[tuple[int, int, int]]:
    """Yields (pod, bytes that its ranks need, bytes that are free) for each pod.

    Args:
        rows: (pod, size of the state, free bytes) of each rank.
        share: Whether all pods share one memory.
    """
    for pod in sorted({row[0] for row in rows}):
        beside = [row for row in rows if row[0] == pod or share]
        # Two files, and the copy that a checkpoint stages for a while.
        yield pod, sum(3 * size for _, size, _ in beside), min(free for *_, free in beside)
