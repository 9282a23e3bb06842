"""Measurements of a rank of each framework: steps, the bytes that they send, and all-reduces."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.simulation.sizes import SETTLING, STEPS

SIZES = (4, 2 * 1024 * 1024)
"""Bytes of the all-reduces: nearly none, and a bucket."""
RANKS = int(os.environ["SCALING_RANKS"])
FP16 = os.environ.get("SCALING_COMPRESSION") == "fp16"


def pin(node: int) -> None:
    """Gives this thread, and those that it starts, the core of its node."""
    os.sched_setaffinity(0, {node % (os.cpu_count() or 1)})


def own_node() -> int:
    """Returns the number of this rank's pod."""
    return int(os.environ["RANK"]) // int(os.environ["LOCAL_WORLD_SIZE"])


def measure(rank: int, step: Callable[[], object], reduce: Callable[[int], object]) -> None:
    """Times steps and all-reduces on each rank; that of rank 0 writes the result."""
    for _ in range(SETTLING):
        step()
    before, steps = sent_bytes(), _timed(step)
    found = {"step": steps, "sent": (sent_bytes() - before) / STEPS}
    if RANKS > 1:
        found["reduce"] = {}
        for size in SIZES:
            reduce(size)  # the first one connects
            found["reduce"][size] = statistics.median(_timed(lambda size=size: reduce(size)))
    if rank == 0:
        aside = Path(os.environ["RECOVERY_FOLDER"], "result.part")
        aside.write_text(json.dumps(found))
        aside.rename(aside.with_suffix(".json"))


def sent_bytes() -> int:
    """Returns the bytes that all ranks have sent, headers included: the trial has a loopback of its own."""
    (line,) = [one for one in Path("/proc/net/dev").read_text().splitlines() if one.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[8])


def _timed(work: Callable[[], object]) -> list[float]:
    ends = [time.perf_counter()]
    for _ in range(STEPS):
        work()
        ends.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(ends)]
