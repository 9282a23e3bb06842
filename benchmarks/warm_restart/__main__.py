"""Kills a rank of each framework's script in turn. Each trial is kept as it ends; repeat the command to continue."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

from benchmarks.ledger import Ledger
from benchmarks.recovery.trials import NeverStartedError
from benchmarks.warm_restart.results import KEY, REPORT, render
from benchmarks.warm_restart.trial import FRAMEWORKS, installed, kill


def main() -> int:
    """Measures the requested frameworks and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.warm_restart", description=__doc__)
    p.add_argument("--arm", action="append", choices=list(FRAMEWORKS), help="default: all that are installed")
    p.add_argument("--trials", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--max-load", type=float, help="wait before a trial until the load of the last minute is below this")
    p.add_argument("--budget", type=float, metavar="MINUTES", default=24 * 60, help="start no trial after this time")
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the trials that the file has of these frameworks")
    p.add_argument("--render", action="store_true", help="measure nothing; write the table from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    if left_out := [name for name in FRAMEWORKS if name not in installed()]:
        print(f"{', '.join(left_out)}: not installed here; `make benchmark-warm-restart` has them\n")
    arms = [name for name in installed() if not args.arm or name in args.arm]
    ledger, deadline = Ledger(args.out), time.monotonic() + 60 * args.budget
    if args.again:
        ledger.forget(KEY, arms)
    for number in range(args.trials):
        # A disturbance that lasts longer than a trial meets all arms.
        for arm in arms:
            if ledger.has(KEY, arm, number):
                continue
            while args.max_load and os.getloadavg()[0] > args.max_load and time.monotonic() < deadline:
                time.sleep(5)
            if time.monotonic() > deadline:
                print(f"the budget of {args.budget:g} minutes is spent; repeat the command to continue")
                return 0
            ledger.begin(KEY, args.trials, "gloo, 4 ranks")
            load = round(os.getloadavg()[0], 2)
            try:
                measured = kill(arm, random.Random(f"{args.seed}/{number}"))
            except NeverStartedError as error:
                print(f"{number} {error}\nThis trial measures nothing; repeat the command.", file=sys.stderr)
                continue
            ledger.add(KEY, {"arm": arm, "trial": number, "load": load, **measured})
            print(f"{number} {arm}: {measured['seconds']} s {measured.get('phases')}", file=sys.stderr, flush=True)
    if found := ledger.trials(KEY):
        print(render(ledger.circumstances(KEY), found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
