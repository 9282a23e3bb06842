#!/usr/bin/env python3
"""Measures a coordinator with many members over real sockets: times, CPU and memory.

.venv/bin/python hack/group_size.py [--members 64 512 2048] [--trials 5]

The members are light (no worker processes) and share one process, whose CPU is part of the times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.lib.crowd import crowd

IDLE_SECONDS = 5.0


def measure(size: int, trials: int) -> str:
    """Returns one row of the table."""
    with tempfile.TemporaryDirectory() as folder, crowd(Path(folder), size) as group:
        formed = group.until_attempt(1)
        before = group.cpu()
        group.run_for(IDLE_SECONDS)
        load = (group.cpu() - before) / IDLE_SECONDS
        times = []
        for attempt in range(2, 2 + trials):
            group.run_for(12.0)  # attempts that end soon would be held back
            group.fail_all()
            times.append(group.until_attempt(attempt))
        memory = group.resident() / 1024
        target = 20 + size * 10 / 1000
    return (
        f"| {size} | {formed:.2f} s | {load:.1%} of a core | {statistics.median(times):.2f} s | {max(times):.2f} s "
        f"| {memory:.1f} MiB (target {target:.1f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--trials", type=int, default=5)
    arguments = parser.parse_args()
    print("| members | first attempt | running | all fail: next attempt, median | worst | memory at its highest |")
    print("|---|---|---|---|---|---|")
    for size in arguments.members:
        print(measure(size, arguments.trials), flush=True)


if __name__ == "__main__":
    main()
