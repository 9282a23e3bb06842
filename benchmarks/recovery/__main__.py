"""Injects faults into groups of dtj, torchrun, NVRx and torchft in turn; keeps every trial; prints Markdown tables.

A run that was interrupted continues where it stopped: trials that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.ledger import Ledger
from benchmarks.recovery import trials
from benchmarks.recovery.arms import ARMS, installed
from benchmarks.recovery.results import REPORT, TABLES, render

EXPERIMENTS: dict[str, Callable[..., trials.Trial]] = {
    "kill": trials.kill, "start": trials.start, "agent": trials.agent, "spare": trials.spare,
    "stop": trials.stop, "goodput": trials.goodput,
}  # fmt: skip


def measure(what: str, arms: list[str], args: argparse.Namespace, ledger: Ledger, deadline: float) -> bool:
    """Adds trials until each arm has enough. Returns whether there was time for all of them."""
    count = 1 if what == "goodput" else args.trials
    pair = partial(EXPERIMENTS[what], minutes=args.minutes) if what == "goodput" else EXPERIMENTS[what]
    for number in range(count):
        # All arms see the same ranks and moments in one round, in an order that changes.
        turn = random.Random(f"{args.seed}/{what}/{number}")
        for arm in turn.sample(arms, len(arms)):
            if ledger.has(what, arm, number):
                continue
            if time.monotonic() > deadline:
                return False
            ledger.begin(what, count, "gloo, 4 ranks")
            load, began = round(os.getloadavg()[0], 2), time.monotonic()
            try:
                measured = pair(arm, random.Random(f"{args.seed}/{what}/{number}"))
            except trials.NeverStartedError as error:
                print(f"{what} {number} {error}\nThis trial measures nothing; repeat the command.", file=sys.stderr)
                continue
            trial = {"arm": arm, "trial": number, "load": load, **measured}
            ledger.add(what, trial)
            print(f"{what} {number} {arm}: {trial['seconds']} s (trial of {time.monotonic() - began:.0f} s)",
                  file=sys.stderr, flush=True)  # fmt: skip
    return True


def main() -> int:
    """Measures and prints the requested tables."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    p.add_argument("what", nargs="*", choices=[*EXPERIMENTS, []], default=[], help=f"default: {' '.join(EXPERIMENTS)}")
    p.add_argument("--trials", type=int, default=20)
    p.add_argument("--minutes", type=float, default=20, help="of the goodput run of each arm")
    p.add_argument("--arm", action="append", choices=list(ARMS), help="only this arm; repeatable")
    p.add_argument("--budget", type=float, metavar="MINUTES", default=24 * 60, help="start no trial after this time")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument(
        "--again", action="store_true", help="drop the trials that the file has of these experiments and arms"
    )
    p.add_argument("--render", action="store_true", help="measure nothing; write tables and plot from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    available = installed()
    if left_out := [name for name in ARMS if name not in available]:
        print(f"{', '.join(left_out)}: not installed here; `make benchmark-recovery` has them\n")
    ledger = Ledger(args.out)
    deadline = time.monotonic() + 60 * args.budget
    for what in args.what or EXPERIMENTS:
        arms = [arm for arm in trials.arms_of(what, available) if not args.arm or arm in args.arm]
        if args.again:
            ledger.forget(what, arms)
        complete = measure(what, arms, args, ledger, deadline)
        if found := ledger.trials(what):
            print(render(TABLES[what], ledger.circumstances(what), found), flush=True)
        if not complete:
            print(f"{what}: the budget of {args.budget:g} minutes is spent; repeat the command to continue")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
