"""Disturbs jobs on the kind cluster of `make cluster-up deploy`; each shape's measurements replace its last ones.

The trials of a comparison (`many`, `ladder`) are kept one by one, and a run that was interrupted continues there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kind import jobset, ladder, many, tables
from benchmarks.kind.results import REPORT, SHAPES, Shape, render
from benchmarks.ledger import Ledger
from benchmarks.report import circumstances

TRIALS = 10
PLACE = "control plane and nodes on the same machine"
EXTRA = {
    tables.MANY: f"{many.PODS} pods of one rank without torch; {PLACE}",
    tables.LADDER: f"gloo, {ladder.RANKS} ranks; JobSet v0.11.0; {PLACE}",
}


def main() -> int:
    """Measures the requested shapes and prints their tables. Returns 1 if the oracle of one has found anything."""
    names = [*SHAPES, *tables.TITLES]
    p = argparse.ArgumentParser(prog="python -m benchmarks.kind", description=__doc__)
    p.add_argument("shape", nargs="*", choices=[*names, []], default=[], help=f"default: {' '.join(names)}")
    p.add_argument("--trials", type=int, help="default: 10 of each ordinal, 15 / 5 of nodes, 10 of a comparison")
    p.add_argument("--out", type=Path, help="keep the measurements in this JSON file")
    p.add_argument(
        "--only", action="append", metavar="TEXT", help="of a comparison only the arm with this name, or with this text"
    )
    p.add_argument("--again", action="store_true", help="drop the trials that the file has of a comparison's arms")
    p.add_argument("--render", action="store_true", help="measure nothing; write the tables from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    failed = False
    for key in args.shape or names:
        if key in tables.TITLES:
            _compare(key, args)
        else:
            failed |= not _disturb(key, SHAPES[key], args)
    return 1 if failed else 0


def _disturb(key: str, shape: Shape, args: argparse.Namespace) -> bool:
    """Measures one shape by tests.chaos.on_kind. Returns whether its oracle holds."""
    trials = args.trials or shape.trials
    how = circumstances(trials, f"gloo, 3 ranks; {PLACE}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "measured.json")
        command = [sys.executable, "-m", "tests.chaos.on_kind", *shape.arguments, "--trials", str(trials)]
        code = subprocess.run([*command, "--out", str(out)], check=False).returncode
        if code:
            print(f"{key}: exit code {code}; nothing is kept of this shape", file=sys.stderr)
            return False
        found = {**json.loads(out.read_text()), "circumstances": how}
    if args.out:
        args.out.write_text(json.dumps({**REPORT.load(args.out), key: found}, indent=1) + "\n")
    print(render(shape, found), flush=True)
    return True


def _compare(key: str, args: argparse.Namespace) -> None:
    """Measures one comparison. Its arms take turns, so that a disturbance meets all of them."""
    ledger, trials = Ledger(args.out), args.trials or TRIALS
    chosen = [arms for arms in _arms(key) if not args.only or set(arms) & _named(_arms(key), args.only)]
    if args.again:
        for arms in chosen:
            ledger.forget(key, arms)
    peers = key == tables.LADDER and any("JobSet" in arm for arms in chosen for arm in arms)
    with jobset.controller() if peers else contextlib.nullcontext():
        for number in range(trials):
            for arms in chosen:
                if all(ledger.has(key, arm, number) for arm in arms):
                    continue
                ledger.begin(key, trials, EXTRA[key])
                load = round(os.getloadavg()[0], 2)
                for arm, found in _arms(key)[arms](number).items():
                    ledger.add(key, {"arm": arm, "trial": number, "load": load, **found})
                    print(key, arm, number, {"load": load, **found}, file=sys.stderr, flush=True)
    if ledger.trials(key):
        print(tables.render(key, {"circumstances": ledger.circumstances(key), "trials": ledger.trials(key)}))


def _named(sets: Iterable[tuple[str, ...]], texts: Sequence[str]) -> set[str]:
    """Returns the arms whose name is one of the texts; of a text that is no arm's name, those that have it."""
    arms = {arm for arms in sets for arm in arms}
    return {arm for text in texts for arm in arms if (arm == text if text in arms else text in arm)}


def _arms(key: str) -> Mapping[tuple[str, ...], Callable[[int], dict[str, Any]]]:
    """Returns the arms of a comparison that are measured together, and how."""
    if key == tables.LADDER:
        return {arms: lambda number, arms=arms: ladder.measure(arms, number) for arms, _ in ladder.SETS}
    return {(arm,): lambda number, arm=arm: {arm: many.measure(arm, number)} for arm in many.ARMS}


if __name__ == "__main__":
    raise SystemExit(main())
