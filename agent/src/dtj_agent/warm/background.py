"""Imports beside a training, which must not notice it."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Optional, Sequence, Tuple

from dtj_agent.warm import preload, script
from dtj_agent.warm.import_report import ReportWriter
from dtj_agent.warm.script_changes import package
from dtj_agent.warm.watched_imports import Obstacle, WatchedImports

LEAST_ROOM_BYTES = 1 << 30
CGROUP = "/sys/fs/cgroup"
# The idle time after each import, as a share of its own, and at most.
REST_SHARE, REST_SECONDS = 2.0, 1.0
_ADJUSTMENT = "/proc/self/oom_score_adj"


def has_room(copies: int = 1, root: str = CGROUP) -> bool:
    """Returns whether the container has memory for this many copies of what the ranks have imported."""
    try:
        limit, used = (_read_number(os.path.join(root, "memory." + name)) for name in ("max", "current"))
        with open(os.path.join(root, "memory.stat")) as file:
            cached = [int(line.split()[1]) for line in file if line.startswith("inactive_file ")]
    except (OSError, ValueError):
        return True  # no limit, or none that can be seen
    return limit - used + sum(cached) >= copies * LEAST_ROOM_BYTES


def _read_number(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def import_all(
    modules: Sequence[str],
    imports: WatchedImports,
    command: Sequence[str],
    report: ReportWriter,
    announce: Optional[preload.Send] = None,
) -> Optional[Tuple[str, Obstacle]]:
    """Imports `modules` one after the other. Returns the first package that can't stay, with the reason.

    `announce`: given if an attempt may wait for the modules: they follow each other without a rest, and it gets
    the name of each.
    """
    for name in modules:
        if name in sys.modules:  # by now
            continue
        report.importing(name)
        if announce is not None:
            announce({"importing": name})
        began = time.monotonic()
        obstacle = imports.fetch(name)
        if obstacle is None and command:
            hidden = script.shadowed(command)
            obstacle = Obstacle(hidden) if hidden is not None else None
        if obstacle is not None:
            return package(name), obstacle
        if announce is None:
            time.sleep(min(REST_SECONDS, REST_SHARE * (time.monotonic() - began)))
    # Garbage of an import would count as the script's: an optimizer for example.
    gc.collect()
    # Otherwise a collection in a worker would write to, and so copy, every page with objects.
    gc.freeze()
    return None


def yield_processor(yields: bool) -> None:
    """Marks this process as one that preempts no other; that can be taken back, as niceness can't.

    Threads that an import has started have inherited it.
    """
    policy = os.SCHED_BATCH if yields else os.SCHED_OTHER
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        except OSError:  # the thread has ended, or the container may not
            continue


def die_first() -> str:
    """Lets the kernel kill this process before any other if memory runs out; returns what `die_as_before` needs."""
    try:
        with open(_ADJUSTMENT, "r+") as file:
            before = file.read()
            file.seek(0)
            file.write("1000")
        return before
    except OSError:
        return ""


def die_as_before(before: str) -> None:
    """Takes `die_first` back."""
    try:
        if before:
            with open(_ADJUSTMENT, "w") as file:
                file.write(before)
    except OSError:
        pass
