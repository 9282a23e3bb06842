"""python -m benchmarks.trainer [throughput] [checkpoint] [overhead] [--trials 10] [--world 2] [--out results.json]"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import torch

from benchmarks.trainer import checkpoint, throughput
from benchmarks.trainer.group import run, table


def main() -> int:
    """Measures what is asked for and prints Markdown tables."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__)
    p.add_argument("what", nargs="*", choices=["throughput", "checkpoint", "overhead", []], default=[])
    p.add_argument("--trials", type=int, default=10)
    p.add_argument("--world", type=int, default=2)
    p.add_argument("--volume", help="where checkpoints are written; default: the temporary folder")
    p.add_argument("--out", type=Path, help="all numbers as JSON")
    args = p.parse_args()
    wanted = args.what or ["throughput", "checkpoint", "overhead"]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    machine += f", torch {torch.__version__}, gloo, {args.world} ranks"
    print(f"{machine}\n")
    results: dict[str, object] = {"machine": machine}
    if "throughput" in wanted:
        rows = run(args.world, throughput.measure, args.trials)
        print(table("A training step", "ms", rows, "bare DDP loop"))
        results["throughput ms"] = rows
    if "checkpoint" in wanted:
        stalls, steps = run(args.world, checkpoint.measure, args.trials, args.volume)
        print(table("Stall of the training thread for a checkpoint of 151 MB", "ms", stalls, "dcp.save"))
        print(table("A step beside the writing", "ms", steps, "nothing is written"))
        results |= {"stall ms": stalls, "step beside writing ms": steps}
    if "overhead" in wanted:
        rows = run(args.world, throughput.overhead, args.trials)
        print(table("Telling (meter, records, progress, agreement) as a part of a step", "%", rows, "CPU time"))
        results["overhead %"] = rows
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
