"""Compares the trainer with bare torch loops, Lightning and Accelerate; prints Markdown tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Rows, circumstances, render
from benchmarks.trainer import checkpoint, memory, snapshots, tensor_bytes, throughput
from benchmarks.trainer.arms import ARMS, installed
from benchmarks.trainer.group import run
from benchmarks.trainer.results import REPORT

ALL = ["throughput", "memory", "bytes", "checkpoint", "snapshots", "overhead"]
# Each trial starts a fresh group for each arm; trials differ by a few MB.
MEMORY_TRIALS = 3


def measure(what: str, world: int, trials: int, volume: str | None) -> Iterator[tuple[str, Rows]]:
    """Yields (table, rows)."""
    match what:
        case "throughput":
            for workload in throughput.WORKLOADS:
                yield f"throughput-{workload}", run(world, throughput.measure, trials, workload)
        case "memory":
            peaks, states = memory.measure(world, trials)
            yield "memory-peak", peaks
            yield "memory-state", states
        case "bytes":
            for kind, rows in run(world, tensor_bytes.measure).items():
                yield f"bytes-{kind}", rows
        case "checkpoint":
            stalls, steps = run(world, checkpoint.measure, trials, volume)
            yield "stall", stalls
            yield "beside-writing", steps
        case "snapshots":
            costs: Rows = {}
            for name, *sizes in snapshots.WORKLOADS:
                rows, costs[name] = run(world, snapshots.measure, trials, *sizes)
                yield f"snapshots-{name}", rows
            yield "snapshots-cost", costs
        case "overhead":
            yield "overhead", run(world, throughput.overhead, trials)


def main() -> int:
    """Measures and prints the requested tables."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__)
    p.add_argument("what", nargs="*", choices=[*ALL, []], default=[], help=f"default: {' '.join(ALL)}")
    p.add_argument("--trials", type=int, default=10)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--volume", help="where checkpoints are written; default: the temporary folder")
    p.add_argument("--out", type=Path, help="write the rows into this JSON file; rows of other tables stay")
    p.add_argument(
        "--render",
        action="store_true",
        help="measure nothing; write the tables of results.json into README.md",
    )
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    left_out = [name for name in ARMS if name not in installed()]
    if left_out:
        print(f"{', '.join(left_out)}: not installed here; `make benchmark-trainer` has them\n")
    for what in args.what or ALL:
        limits = {"memory": MEMORY_TRIALS, "bytes": 1}
        trials = min(args.trials, limits.get(what, args.trials))
        how = circumstances(trials, f"gloo, {args.world} ranks")
        for key, rows in measure(what, args.world, trials, args.volume):
            print(render(REPORT.tables[key], rows, how), flush=True)
            if args.out:
                REPORT.save(args.out, {key: (rows, how)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
