"""The scaling efficiency of ranks with a core's share each, measured and modelled; up to 256 ranks modelled alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.communication import link
from benchmarks.ledger import Ledger, Trial
from benchmarks.report import markdown
from dtj.simulate.model import Setup, step
from dtj.simulate.network import Link, Network
from dtj.simulate.profile import parse

KEY, TITLE = "efficiency", "Weak scaling efficiency: the step of one rank over the step of N"
MEASURED = (2, 4)
"""Ranks on two nodes with a core each. Most of their computation is a pause."""
MBIT = 10_000
"""The rate of the link, which is more than two ranks of gloo use."""
PER_NODE = 8
"""Ranks of a node where more than two nodes are modelled."""
RANKS = (*MEASURED, 8, 16, 32, 64, 128, 256)
CLAIMED = {2: 0.9, 4: 0.9, 8: 0.93, 256: 0.63}
"""Efficiencies that other frameworks state: the highest for each number of ranks."""
WORK = "benchmarks.simulation.work"
NOTE = (
    "The steps are the fastest of all rounds, and half of the rounds lie in the range. "
    "Modelled: from one rank's profile, the link between the nodes and the one within a node; up to 8 ranks on two "
    "nodes, from 16 ranks on with 8 on each node."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """One number of ranks."""

    ranks: int
    measured: float | None
    """None: so many ranks were not started."""
    quartiles: tuple[float, float] | None
    modelled: float
    """With a ring over all ranks."""
    levels: float
    """With `communication.hierarchical`."""


def arm(ranks: int) -> str:
    """Returns the name of an arm in results.json."""
    return f"{ranks} ranks"


def measure_round(ledger: Ledger, number: int) -> None:
    """Measures one rank, the links and the groups within a link, and keeps a trial for each number of ranks."""
    profile = link.run(f"{WORK}:profile", nodes=1)
    node = link.run(f"{WORK}:link", 10)
    local = link.run(f"{WORK}:link", 10, nodes=1, local=2)
    one = link.run(f"{WORK}:steps", nodes=1)
    for ranks in RANKS:
        real = link.run(f"{WORK}:steps", local=ranks // 2) if ranks in MEASURED else None
        between = Link(node["latency_seconds"], node["bytes_per_second"])
        network = Network(
            node=between,
            local=Link(local["latency_seconds"], local["bytes_per_second"]),
            rack=between,
            ranks_per_node=min(ranks // 2, PER_NODE),
        )
        own = parse(json.dumps(profile), "of one rank")
        ledger.add(
            KEY,
            {
                "arm": arm(ranks),
                "trial": number,
                "one": one,
                "measured": real,
                "modelled_one": step(Setup(profile=own, network=network), 1).seconds,
                "modelled": step(Setup(profile=own, network=network), ranks).seconds,
                "levels": step(Setup(profile=own, network=network, collective="hierarchical"), ranks).seconds,
            },
        )


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
        one = min(trial["modelled_one"] for trial in found)
        modelled, levels = (one / min(trial[key] for trial in found) for key in ("modelled", "levels"))
        yield Efficiency(ranks=ranks, measured=real, quartiles=quartiles, modelled=modelled, levels=levels)


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown."""
    heads = ("measured", "half of the rounds", "modelled, ring", "modelled, hierarchical", "others state")
    rows = [
        [
            str(row.ranks),
            "" if row.measured is None else f"{100 * row.measured:.0f} %",
            "" if row.quartiles is None else " to ".join(f"{100 * each:.0f}" for each in row.quartiles) + " %",
            f"{100 * row.modelled:.0f} %",
            f"{100 * row.levels:.0f} %",
            f"{100 * CLAIMED[row.ranks]:.0f} %" if row.ranks in CLAIMED else "",
        ]
        for row in efficiencies(trials)
    ]
    return markdown(TITLE, {"ranks": "left", **dict.fromkeys(heads, "right")}, rows, f"{NOTE} {circumstances}")
