"""Measures the operator with many jobs, beside other operators. A trial is kept as soon as it ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger
from benchmarks.operator.plan import experiments
from benchmarks.operator.results import REPORT, TITLES, render


def main() -> int:
    """Measures the requested arms and prints their tables."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__)
    p.add_argument("--jobs", type=int, default=1000)
    p.add_argument("--trials", type=int, default=3)
    p.add_argument("--only", action="append", metavar="TEXT", help="only arms with this text; repeatable")
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the trials that the file has of these arms")
    p.add_argument("--list", action="store_true", help="measure nothing; list the arms")
    p.add_argument("--render", action="store_true", help="measure nothing; write tables and plot from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    arms = [
        each
        for each in experiments(args.jobs, args.trials)
        if not args.only or any(text in f"{each.key} {each.arm}" for text in args.only)
    ]
    if args.list:
        print("\n".join(f"{each.key} {each.arm} x {each.trials}" for each in arms))
        return 0
    ledger = Ledger(args.out)
    for each in arms:
        if args.again:
            ledger.forget(each.key, [each.arm])
    # The arms take turns, so that a disturbance meets all of them.
    for number in range(max((each.trials for each in arms), default=0)):
        for each in arms:
            if number < each.trials and not ledger.has(each.key, each.arm, number):
                _measure(ledger, each.key, each.arm, number, args.trials, each.measure)
    for key in TITLES:
        if ledger.trials(key):
            print(render(key, {"circumstances": ledger.circumstances(key), "trials": ledger.trials(key)}))
    return 0


def _measure(
    ledger: Ledger, key: str, arm: str, number: int, trials: int, measure: Callable[[], dict[str, Any]]
) -> None:
    ledger.begin(key, trials, "")
    load = round(os.getloadavg()[0], 2)
    found = {"arm": arm, "trial": number, "load": load, **measure()}
    ledger.add(key, found)
    print(key, found, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
