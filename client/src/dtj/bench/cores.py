"""The CPUs that ranks may use, and whether each rank has one for itself."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

OWN, THREAD, SHARED = "own core", "own hardware thread", "shared core"
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


class Cores:
    """CPUs in the order in which ranks get them: those of different cores first."""

    def __init__(self, cpus: Iterable[tuple[int, str]], quota: float = math.inf) -> None:
        """Orders the CPUs.

        Args:
            cpus: Number and core of each; two CPUs of one core are its hardware threads.
            quota: CPUs of time that the container may use.
        """
        first: dict[str, int] = {}
        rest: list[int] = []
        for cpu, core in sorted(cpus):
            if core in first:
                rest.append(cpu)
            else:
                first[core] = cpu
        self.order = [*first.values(), *rest]
        self.whole = min(len(first), quota)
        """Cores that are there; a quota counts as cores."""
        self.threads = min(len(self.order), quota)

    def of_ranks(self, ranks: int) -> list[int]:
        """Returns the CPU of each rank. Ranks beyond the CPUs begin again at the first."""
        return [self.order[rank % len(self.order)] for rank in range(ranks)]

    def share(self, ranks: int) -> str:
        """Returns OWN, THREAD or SHARED: what each of so many ranks has."""
        return OWN if ranks <= self.whole else THREAD if ranks <= self.threads else SHARED


def read() -> Cores:
    """Reads the CPUs that this process may use."""
    return Cores([(cpu, _core(cpu)) for cpu in sorted(os.sched_getaffinity(0))], _quota())


def _core(cpu: int) -> str:
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:  # a machine that does not describe its cores
        return str(cpu)


def _quota() -> float:
    """Returns the CPUs of time of this container; infinity without a limit."""
    try:
        if _QUOTAS[0].exists():
            allowed, period = _QUOTAS[0].read_text().split()
        else:
            allowed, period = _QUOTAS[1].read_text().strip(), _PERIOD.read_text().strip()
        return int(allowed) / int(period) if int(allowed) > 0 else math.inf
    except (OSError, ValueError):  # no such file, or "max"
        return math.inf
