"""Takes real steps of gloo ranks on two nodes with a slow link, and compares them with `dtj simulate`. Needs root."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.communication import link
from benchmarks.ledger import Ledger
from benchmarks.simulation import efficiency
from benchmarks.simulation.points import LINKS, POINTS, Point, modelled
from benchmarks.simulation.results import KEY, REPORT, render

WORK = "benchmarks.simulation.work"
LINK_TRIALS = 10
ALL = ["points", "efficiency"]


def main() -> int:
    """Measures all points in each round, and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    p.add_argument("what", nargs="*", choices=[*ALL, []], default=[], help=f"default: {' '.join(ALL)}")
    p.add_argument("--trials", type=int, default=5, help="rounds; the fastest counts")
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the trials that the file has")
    p.add_argument("--render", action="store_true", help="measure nothing; write the table from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    ledger, what = Ledger(args.out), args.what or ALL
    if args.again:
        if "points" in what:
            ledger.forget(KEY, [point.name for point in POINTS])
        if "efficiency" in what:
            ledger.forget(efficiency.KEY, [efficiency.arm(ranks) for ranks in efficiency.RANKS])
    if "points" in what:
        _points(ledger, args.trials)
        print(render(ledger.circumstances(KEY), ledger.trials(KEY)))
    if "efficiency" in what:
        _efficiencies(ledger, args.trials)
        print(efficiency.render(ledger.circumstances(efficiency.KEY), ledger.trials(efficiency.KEY)))
    return 0


def _points(ledger: Ledger, trials: int) -> None:
    """Measures the points that the ledger lacks."""
    for number in range(trials):
        for mbit in LINKS:
            points = [one for one in POINTS if one.mbit == mbit and not ledger.has(KEY, one.name, number)]
            if points:
                ledger.begin(KEY, trials, "gloo, two nodes with a core each")
                with link.link(mbit):
                    _round(ledger, number, points)


def _efficiencies(ledger: Ledger, trials: int) -> None:
    """Measures the rounds that the ledger lacks."""
    for number in range(trials):
        if not ledger.has(efficiency.KEY, efficiency.arm(efficiency.RANKS[-1]), number):
            ledger.begin(efficiency.KEY, trials, "gloo, two nodes with a core each")
            with link.link(efficiency.MBIT):
                efficiency.measure_round(ledger, number)


def _round(ledger: Ledger, number: int, points: list[Point]) -> None:
    """Measures the profile and the links, and then the real steps of some points on one link."""
    profile = link.run(f"{WORK}:profile", nodes=1)
    node = link.run(f"{WORK}:link", LINK_TRIALS)
    local = link.run(f"{WORK}:link", LINK_TRIALS, nodes=1, local=2)
    for point in points:
        real = link.run(
            f"{WORK}:steps",
            nodes=min(2, point.ranks),
            local=point.ranks_per_node,
            interleaved=point.placement == "interleaved",
        )
        model = modelled(point, profile, node, local)
        inputs = {
            "profile_seconds": sum(profile["seconds"].values()),
            "spread_seconds": profile["spread_seconds"],
            "node": {key: node[key] for key in ("latency_seconds", "bytes_per_second")},
            "local": {key: local[key] for key in ("latency_seconds", "bytes_per_second")},
        }
        ledger.add(KEY, {"arm": point.name, "trial": number, "measured": real, "modelled": model, **inputs})
        print(
            f"{point.name}: measured {1000 * real:.1f} ms, modelled {1000 * model:.1f} ms", file=sys.stderr, flush=True
        )


if __name__ == "__main__":
    raise SystemExit(main())
