"""Times compressed gradients on a shaped link, and trains with them; prints Markdown tables."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.communication import choice, link, loss, speed
from benchmarks.communication.results import AGAIN, INTERLEAVED, LINKS, REPORT, TABLES
from benchmarks.report import Rows, circumstances, render
from benchmarks.trainer.group import run

ALL = ["speed", "levels", "buckets", "tune", "auto", "loss-300", "loss-900"]


def main() -> int:
    """Measures and prints the requested tables."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.communication", description=__doc__)
    p.add_argument("what", nargs="*", choices=[*ALL, []], default=[], help=f"default: {' '.join(ALL)}")
    p.add_argument("--trials", type=int, default=10)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--arm", action="append", help="only this arm of the losses; repeatable")
    p.add_argument("--link", type=int, action="append", help="only this rate of the link in Mbit/s; repeatable")
    p.add_argument("--out", type=Path, help="write the rows into this JSON file; rows of other tables and arms stay")
    p.add_argument("--render", action="store_true", help="measure nothing; write the tables into README.md")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    rates = {"speed": set(LINKS), "levels": set(LINKS), "auto": set(choice.LINKS)}
    for what in args.what or ALL:
        if unknown := set(args.link or ()) - rates.get(what, set(args.link or ())):
            p.error(f"--link {min(unknown)}: {what} has tables for {', '.join(map(str, sorted(rates[what])))}")
    for what in args.what or ALL:
        if what == "speed":
            how = circumstances(args.trials, "gloo, 2 ranks on 2 nodes, a core each")
            for mbit in args.link or LINKS:
                with link.link(mbit):
                    found = link.run("benchmarks.communication.speed:measure", args.trials, speed.ARMS)
                _keep(args.out, {f"speed-{mbit}": found["ms"], f"share-{mbit}": found["ms"], "bytes": found["MB"]}, how)
        elif what == "levels":
            how = circumstances(args.trials, "gloo, 4 ranks on 2 nodes, a core for each node")
            for mbit in args.link or LINKS:
                with link.link(mbit):
                    _keep(args.out, {f"levels-{mbit}": _levels(args.trials)}, how)
        elif what == "buckets":
            how = circumstances(args.trials, "gloo, 4 ranks on 2 nodes, a core for each node")
            with link.link(200):
                found = link.run("benchmarks.communication.buckets:measure", args.trials, local=2)
            _keep(args.out, {"buckets-200": found}, how)
        elif what == "tune":
            how = circumstances(args.trials, "gloo, 2 ranks on 2 nodes, a core each")
            with link.link(200):
                found = link.run("benchmarks.communication.tuning:measure", args.trials)
            _keep(args.out, {"tune-200": found}, how)
        elif what == "auto":
            how = circumstances(args.trials, "gloo, 2 ranks on 2 nodes, a core each")
            for mbit in args.link or choice.LINKS:
                with link.link(mbit):
                    found = link.run("benchmarks.communication.choice:measure", args.trials)
                chosen = ", ".join(f"{method} for the {model}" for model, method in found["chosen"].items())
                _keep(args.out, {f"auto-{mbit}": found["ms"]}, f"{how} auto chose {chosen}.")
        else:
            steps, seeds = int(what.removeprefix("loss-")), list(range(args.seeds))
            names = args.arm or list(loss.ARMS)
            how = circumstances(args.seeds, "gloo, 2 ranks; a trial is a seed")
            kept = _kept(args.out, what) if args.arm else {}
            _keep(args.out, {what: kept | run(2, loss.measure, steps, seeds, names, timeout=6 * 3600)}, how)
    return 0


def _levels(trials: int) -> Rows:
    work, arms = "benchmarks.communication.speed:measure", [speed.CEILING, speed.DDP]
    rows: Rows = link.run(work, trials, [*arms, "bf16", *speed.LEVELS], local=2)["ms"]
    interleaved: Rows = link.run(work, trials, [speed.DDP], local=2, interleaved=True)["ms"]
    return rows | {INTERLEAVED: interleaved[speed.DDP], AGAIN: rows["hierarchical"]}


def _kept(out: Path | None, key: str) -> Rows:
    found: dict[str, Any] = json.loads(out.read_text()) if out and out.exists() else {}
    rows: Rows = found.get(key, {}).get("rows", {})
    return rows


def _keep(out: Path | None, measured: dict[str, Rows], how: str) -> None:
    for key, rows in measured.items():
        print(render(TABLES[key], rows, how), flush=True)
        print({name: round(statistics.median(values), 4) for name, values in rows.items()}, file=sys.stderr)
        if out:
            REPORT.save(out, {key: (rows, how)})


if __name__ == "__main__":
    raise SystemExit(main())
