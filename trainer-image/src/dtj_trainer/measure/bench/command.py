"""`python -m dtj_trainer.measure bench`: the command line of one rank of a trial, which `dtj bench` starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from dtj_trainer.errors import ConfigError
from dtj_trainer.measure.bench.trial import facts, log_every, pin, run_trial, use_threads
from dtj_trainer.measure.bench.workloads import named


def add_bench(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the flags of `bench`."""
    bench = kinds.add_parser(
        "bench",
        help="one trial of `dtj bench`",
        allow_abbrev=False,
        description="Train a built-in model in one way, as a rank of the group that the environment names, and time "
        "the steps. Rank 0 writes the file. `dtj bench` starts the ranks.",
    )
    bench.add_argument("--facts", action="store_true", help="print what can run here as JSON; start nothing")
    bench.add_argument("--arm", default="ddp", help="a strategy of the Trainer, or another arm [%(default)s]")
    bench.add_argument("--model", default="mlp", metavar="NAME[:SIZE=N,...]", help="[%(default)s]")
    bench.add_argument("--batch", type=int, default=32, metavar="N", help="samples of all ranks [%(default)s]")
    bench.add_argument("--steps", type=int, default=30, metavar="N", help="timed steps [%(default)s]")
    bench.add_argument("--warmup", type=int, default=10, metavar="N", help="steps before those [%(default)s]")
    bench.add_argument("--cores", default="", metavar="N,N,...", help="of this node; each rank is kept on one")
    bench.add_argument("--threads", type=int, metavar="N", help="torch threads of a rank [OMP_NUM_THREADS]")
    bench.add_argument("--out", default="trial.json", metavar="FILE", help="- for standard output [%(default)s]")


def bench(flags: argparse.Namespace) -> int:
    """Runs one trial. Raises ConfigError that names the flag."""
    if flags.facts:
        sys.stdout.write(json.dumps(facts()) + "\n")
        return 0
    cores = [int(core) for core in flags.cores.split(",") if core]
    pin(cores, int(os.environ.get("LOCAL_RANK", "0")))
    if flags.threads is not None:
        use_threads(flags.threads)
    name, sizes = parse_model(flags.model)
    workload = named(name, sizes, batch=flags.batch, steps=flags.steps, warmup=flags.warmup)
    found = run_trial(flags.arm, replace(workload, log_every=log_every(flags.warmup)))
    if found is None:
        return 0
    if flags.out == "-":
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    out = Path(flags.out)
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(out)  # a reader never sees half of the file
    return 0


def parse_model(spelled: str) -> tuple[str, dict[str, int]]:
    """Parses `gpt:width=256,layers=8` into the name and the sizes. Raises ConfigError."""
    name, _, rest = spelled.partition(":")
    sizes: dict[str, int] = {}
    for part in filter(None, rest.split(",")):
        size, _, value = part.partition("=")
        if not value.isdecimal():
            raise ConfigError(f"--model {spelled}: write sizes as whole numbers, such as mlp:width=512,layers=4")
        sizes[size] = int(value)
    return name, sizes
