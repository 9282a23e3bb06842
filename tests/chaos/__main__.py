"""Runs groups of real agents through seeded faults: `python -m tests.chaos --seed 7 --faults 20` replays one group."""

from __future__ import annotations

import argparse
import sys
import time

from tests.chaos.faults import FAULTS
from tests.chaos.group import SHAPES
from tests.chaos.run import ChaosError, Report, run

AT_ONCE = 30
"""Faults of one group, whose start they share."""


def main() -> int:
    """Runs until the faults are spent. Returns 1 if a group failed."""
    p = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    p.add_argument("--group", choices=[*SHAPES], default="plain", help="what the group trains")
    p.add_argument("--seed", type=int, default=1, help="of the first group; the next group has the next seed")
    p.add_argument("--faults", type=int, default=AT_ONCE, help=f"more than {AT_ONCE}: a new group for each {AT_ONCE}")
    p.add_argument("--slow", action="store_true", help="with faults that the agents' deadlines make last for seconds")
    p.add_argument("--only", choices=[*FAULTS], default="", metavar="NAME", help="of one kind: " + ", ".join(FAULTS))
    p.add_argument("--verbose", action="store_true", help="print each fault")
    args = p.parse_args()
    total, failed, began = Report(), 0, time.monotonic()
    groups = -(-args.faults // AT_ONCE)
    for group in range(groups):
        faults = min(AT_ONCE, args.faults - group * AT_ONCE)
        try:
            one = run(args.group, args.seed + group, faults, args.slow, args.only, args.verbose)
        except ChaosError as error:
            failed += 1
            print(error, file=sys.stderr, flush=True)
            continue
        for kind, seconds in one.seconds.items():
            total.seconds[kind] += seconds
        total.steps, total.attempts = total.steps + one.steps, total.attempts + one.attempts
        total.snapshots += one.snapshots
    print(total.table())
    print(f"{groups} groups, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
