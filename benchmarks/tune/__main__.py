"""Runs a sweep undisturbed, killed five times, and with ASHA, all with one seed. A sweep is kept as soon as it ends."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.ledger import Ledger, Trial
from benchmarks.tune import sweep
from benchmarks.tune.kills import Disturber
from benchmarks.tune.results import ARMS, ASHA, KEY, KILLED, REPORT, render


def measure(arm: str, seed: int) -> Trial:
    """Runs one sweep. Returns its figures."""
    with tempfile.TemporaryDirectory(prefix="dtj-tune-") as folder:
        run = sweep.SweepRun(Path(folder), sweep.document(seed, sweep.ASHA if arm == ASHA else None))
        disturber = Disturber(seed) if arm == KILLED else None
        try:
            seconds, most = run.run(disturber)
            found = {"seconds": round(seconds, 1), "most": most, **run.found()}
            return found if disturber is None else found | {"kills": disturber.done}
        finally:
            run.close()


def main() -> int:
    """Measures the requested arms and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    p.add_argument("--trials", type=int, default=1, help="sweeps of each arm, each with a seed of its own")
    p.add_argument("--arm", action="append", choices=ARMS, help="only this arm; repeatable")
    p.add_argument("--seed", type=int, default=1, help="of the first sweep")
    p.add_argument("--out", type=Path, help="keep the sweeps in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the sweeps that the file has of these arms")
    p.add_argument("--render", action="store_true", help="measure nothing; write the table from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    ledger, arms = Ledger(args.out), args.arm or ARMS
    if args.again:
        ledger.forget(KEY, arms)
    for number in range(args.trials):
        for arm in arms:
            if ledger.has(KEY, arm, number):
                continue
            ledger.begin(KEY, args.trials, f"{sweep.STEPS} steps of {sweep.STEP_SECONDS:g} s, local jobs of one rank")
            load = round(os.getloadavg()[0], 2)
            measured = measure(arm, args.seed + number)
            ledger.add(KEY, {"arm": arm, "trial": number, "seed": args.seed + number, "load": load, **measured})
            print(f"{arm} {number}: {measured['seconds']} s, best {measured['best']}", file=sys.stderr, flush=True)
    print(render(ledger.circumstances(KEY), ledger.trials(KEY)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
