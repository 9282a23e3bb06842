"""Lets all members of large groups fail at once. A trial is kept as soon as it ends."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.group.measures import ARMS, MEMBERS
from benchmarks.group.results import KEY, REPORT, render
from benchmarks.ledger import Ledger


def main() -> int:
    """Measures the requested sizes and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.group", description=__doc__)
    p.add_argument("--members", type=int, nargs="+", help=f"default: {MEMBERS}")
    p.add_argument("--arm", action="append", choices=list(ARMS), help="default: both; only sockets with --members")
    p.add_argument("--trials", type=int, default=20)
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the trials that the file has of these arms and sizes")
    p.add_argument("--render", action="store_true", help="measure nothing; write the table from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    kinds = args.arm or (["sockets"] if args.members else list(ARMS))
    plan = {f"{kind} {size}": (kind, size) for kind in kinds for size in args.members or MEMBERS[kind]}
    ledger = Ledger(args.out)
    if args.again:
        ledger.forget(KEY, plan)
    for arm, (kind, size) in plan.items():
        # Virtual time is the same in each trial.
        for number in range(args.trials if kind == "sockets" else 1):
            if ledger.has(KEY, arm, number):
                continue
            ledger.begin(KEY, args.trials, "")
            load = round(os.getloadavg()[0], 2)
            measured = {"arm": arm, "trial": number, "kind": kind, "members": size, "load": load, **ARMS[kind](size)}
            ledger.add(KEY, measured)
            print(measured, file=sys.stderr, flush=True)
    print(render(ledger.circumstances(KEY), ledger.trials(KEY)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
