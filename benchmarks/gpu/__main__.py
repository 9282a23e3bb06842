"""Measures the trainer on one CUDA GPU with a GPT of 1.01 billion parameters; prints Markdown tables."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.gpu import measures
from benchmarks.gpu.bench import BILLION, TOY, GpuBench
from benchmarks.gpu.measures import Tables
from benchmarks.gpu.results import REPORT
from benchmarks.report import circumstances, render
from dtj_trainer.telemetry.gpu import peak_flops

ALL = ["steps", "recompute", "edge", "stall"]
# Memory does not vary between trials; three trials show that.
EDGE_TRIALS = 3


def measure(what: str, bench: GpuBench, trials: int, peak: float, volume: str | None) -> Tables:
    """Returns the rows of each table."""
    match what:
        case "steps":
            return measures.steps(bench, trials, peak)
        case "recompute":
            return measures.recompute(bench, trials)
        case "edge":
            return measures.edge(bench, trials)
        case _:
            return measures.stall(bench, trials, volume)


def main() -> int:
    """Measures and prints the requested tables."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    p.add_argument("what", nargs="*", choices=[*ALL, []], default=[], help=f"default: {' '.join(ALL)}")
    p.add_argument("--trials", type=int, default=10)
    p.add_argument(
        "--peak-flops", type=float, help="the device's best in bf16, dense, per second; built in for common GPUs"
    )
    p.add_argument("--volume", help="where checkpoints are written, 25 GB free; default: the temporary folder")
    p.add_argument("--out", type=Path, help="write the rows into this JSON file; rows of other tables stay")
    p.add_argument(
        "--toy", action="store_true", help="use a tiny model, on the CPU if there is no GPU: to test this command"
    )
    p.add_argument(
        "--render",
        action="store_true",
        help="measure nothing; write the tables of results.json into README.md",
    )
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    if not torch.cuda.is_available() and not args.toy:
        p.error("torch sees no CUDA device here; --toy runs the command on the CPU")
    bench = GpuBench(TOY if args.toy else BILLION)
    peak = args.peak_flops or peak_flops(bench.device)
    if not peak:
        p.error("the peak of this device is unknown; pass --peak-flops for dense bf16 from its data sheet")
    name = (
        torch.cuda.get_device_name(bench.device)
        if bench.device.type == "cuda"
        else "CPU, toy model: not a usable figure"
    )
    for what in args.what or ALL:
        trials = min(args.trials, EDGE_TRIALS) if what == "edge" else args.trials
        how = circumstances(trials, name)
        for key, rows in measure(what, bench, trials, peak, args.volume).items():
            print(render(REPORT.tables[key], rows, how), flush=True)
            if args.out:
                REPORT.save(args.out, {key: (rows, how)})
    bench.trainer.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
