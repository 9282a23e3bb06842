"""Kills a rank under each launcher in turn. Each trial is kept as it ends; repeat the command to continue."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

from benchmarks.engines.arms import ARMS, ENGINES, installed
from benchmarks.engines.results import KEY, REPORT, render
from benchmarks.engines.trial import kill
from benchmarks.ledger import Ledger
from benchmarks.recovery.trials import NeverStartedError


def main() -> int:
    """Measures the requested engines and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    p.add_argument("--engine", action="append", choices=ENGINES, help="default: all that are installed; repeatable")
    p.add_argument("--arm", action="append", choices=[arm.name for arm in ARMS], help="only this row; repeatable")
    p.add_argument("--trials", type=int, default=10)
    p.add_argument("--seed", type=int, default=1, help="of the order of the arms")
    p.add_argument("--max-load", type=float, help="wait before a trial until the load of the last minute is below this")
    p.add_argument("--budget", type=float, metavar="MINUTES", default=24 * 60, help="start no trial after this time")
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the trials that the file has of these arms")
    p.add_argument("--render", action="store_true", help="measure nothing; write the table from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    # A trial that SIGTERM interrupts leaves no process and no result.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    engines = [engine for engine in installed() if not args.engine or engine in args.engine]
    if left_out := [engine for engine in ENGINES if engine not in installed()]:
        print(f"{', '.join(left_out)}: not installed here; `make benchmark-engines` has them\n")
    arms = [arm for arm in ARMS if arm.engine in engines and (not args.arm or arm.name in args.arm)]
    ledger, deadline = Ledger(args.out), time.monotonic() + 60 * args.budget
    if args.again:
        ledger.forget(KEY, [arm.name for arm in arms])
    for number in range(args.trials):
        # A disturbance that lasts longer than a trial meets all arms.
        for arm in random.Random(f"{args.seed}/{number}").sample(arms, len(arms)):
            if ledger.has(KEY, arm.name, number):
                continue
            while args.max_load and os.getloadavg()[0] > args.max_load and time.monotonic() < deadline:
                time.sleep(5)
            if time.monotonic() > deadline:
                print(f"the budget of {args.budget:g} minutes is spent; repeat the command to continue")
                return 0
            ledger.begin(KEY, args.trials, "gloo or gRPC, 4 ranks")
            load = round(os.getloadavg()[0], 2)
            try:
                measured = kill(arm)
            except NeverStartedError as error:
                print(f"{number} {error}\nThis trial measures nothing; repeat the command.", file=sys.stderr)
                continue
            ledger.add(KEY, {"arm": arm.name, "trial": number, "load": load, **measured})
            print(f"{number} {arm.name}: {measured['seconds']} s {measured['end']}", file=sys.stderr, flush=True)
    if found := ledger.trials(KEY):
        print(render(ledger.circumstances(KEY), found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
