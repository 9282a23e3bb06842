"""The scaling efficiency of ranks on one machine, measured and modelled, and of up to 256 ranks, modelled alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.communication import link
from benchmarks.ledger import Ledger, Trial
from dtj.simulate.model import Setup, step
from dtj.simulate.network import Link, Network
from dtj.simulate.profile import parse

KEY, TITLE = "efficiency", "Weak scaling efficiency: the step of one rank over the step of N"
MEASURED = (2, 4)
"""Ranks of one machine. Their computation is a pause, so that cores do not limit them."""
PER_NODE = 8
RANKS = (*MEASURED, PER_NODE, 16, 32, 64, 128, 256)
NODE = Link(50e-6, 10e9 / 8)
"""Assumed between nodes of 8 ranks: 10 Gbit/s, 50 µs."""
CLAIMED = {2: 0.9, 4: 0.9, 8: 0.93, 256: 0.63}
"""What other frameworks state, the highest for each number of ranks."""
WORK = "benchmarks.simulation.work"
NOTE = (
    "The steps are the fastest of all rounds, and half of the rounds lie in the range. "
    "Modelled: from one rank's profile and the link between two ranks of this machine; from 16 ranks on, nodes of 8 "
    "with 10 Gbit/s and 50 µs between them are assumed."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """One number of ranks."""

    ranks: int
    measured: float | None
    """None: so many ranks were not started."""
    quartiles: tuple[float, float] | None
    modelled: float


def arm(ranks: int) -> str:
    """Returns the name of an arm in results.json."""
    return f"{ranks} ranks"


def measure_round(ledger: Ledger, number: int) -> None:
    """Measures one rank, the link and the groups, and keeps a trial for each number of ranks."""
    profile = link.run(f"{WORK}:profile", nodes=1)
    local = link.run(f"{WORK}:link", 10, nodes=1, local=2)
    one = link.run(f"{WORK}:steps", nodes=1)
    for ranks in RANKS:
        real = link.run(f"{WORK}:steps", nodes=1, local=ranks) if ranks in MEASURED else None
        modelled = _modelled(profile, local, ranks)
        ledger.add(
            KEY,
            {
                "arm": arm(ranks),
                "trial": number,
                "one": one,
                "measured": real,
                "modelled_one": _modelled(profile, local, 1),
                "modelled": modelled,
            },
        )


def _modelled(profile: dict[str, Any], local: dict[str, Any], ranks: int) -> float:
    """Returns the modelled seconds of a step."""
    within = Link(local["latency_seconds"], local["bytes_per_second"])
    network = Network(node=NODE, local=within, rack=NODE, ranks_per_node=min(ranks, PER_NODE))
    return step(Setup(profile=parse(json.dumps(profile), "of one rank"), network=network), ranks).seconds


def efficiencies(trials: Sequence[Trial]) -> Iterator[Efficiency]:
    """Yields the efficiency by number of ranks."""
    for ranks in RANKS:
        found = [trial for trial in trials if trial["arm"] == arm(ranks)]
        if not found:
            continue
        real, quartiles = None, None
        if found[0]["measured"] is not None:
            real = min(trial["one"] for trial in found) / min(trial["measured"] for trial in found)
            each = [trial["one"] / trial["measured"] for trial in found]
            if len(each) > 1:
                low, _, high = statistics.quantiles(each, n=4)
                quartiles = low, high
        modelled = min(trial["modelled_one"] for trial in found) / min(trial["modelled"] for trial in found)
        yield Efficiency(ranks=ranks, measured=real, quartiles=quartiles, modelled=modelled)


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown."""
    out = [
        f"**{TITLE}**",
        "",
        "| ranks | measured | half of the rounds | modelled | others state |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in efficiencies(trials):
        cells = [
            str(row.ranks),
            "" if row.measured is None else f"{100 * row.measured:.0f} %",
            "" if row.quartiles is None else " to ".join(f"{100 * each:.0f}" for each in row.quartiles) + " %",
            f"{100 * row.modelled:.0f} %",
            f"{100 * CLAIMED[row.ranks]:.0f} %" if row.ranks in CLAIMED else "",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join([*out, "", f"{NOTE} {circumstances}", ""])
