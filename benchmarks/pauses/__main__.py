"""Runs a script that pauses under `dtj run`, and counts the false alarms. A run is kept as soon as it ends."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from benchmarks.ledger import Ledger
from benchmarks.pauses.results import KEY, REPORT, render
from benchmarks.pauses.run import ARMS, measure


def main() -> int:
    """Measures the requested arms and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.pauses", description=__doc__)
    p.add_argument("--minutes", type=float, default=30, help="of training, pauses included, in each run")
    p.add_argument("--trials", type=int, default=1, help="runs of each arm")
    p.add_argument("--arm", action="append", choices=list(ARMS), help="only this arm; repeatable; default: dtj")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path, help="keep the runs in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the runs that the file has of these arms")
    p.add_argument("--render", action="store_true", help="measure nothing; write the table from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    ledger, arms = Ledger(args.out), args.arm or list(ARMS)[:1]
    if args.again:
        ledger.forget(KEY, arms)
    for number in range(args.trials):
        for arm in arms:
            if ledger.has(KEY, arm, number):
                continue
            ledger.begin(KEY, args.trials, "gloo, 2 pods of 2 ranks")
            load = round(os.getloadavg()[0], 2)
            measured = measure(arm, args.minutes, random.Random(f"{args.seed}/{number}"))
            ledger.add(KEY, {"arm": arm, "trial": number, "load": load, **measured})
            print(f"{arm} {number}: {measured}", file=sys.stderr, flush=True)
    print(render(ledger.circumstances(KEY), ledger.trials(KEY)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
