"""The time until all jobs have their children, by operator, beside the floor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIGURE = Path(__file__).resolve().parents[2] / "docs/figures/operator-creation.png"
COLOURS = {"floor": "#999999", "ours": "#1f6feb"}
OTHER = "#d0a040"


def bars(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns the seconds of all trials by arm, the slowest arm first."""
    found: dict[str, list[float]] = {}
    for trial in results.get("creation", {}).get("trials", []):
        found.setdefault(trial["arm"], []).append(trial["seconds"])
    return dict(sorted(found.items(), key=lambda arm: -statistics.median(arm[1])))


def draw(results: Mapping[str, Any], path: Path = FIGURE) -> None:
    """Writes the plot as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = bars(results)
    figure, axes = pyplot.subplots(figsize=(9, 0.45 * len(found) + 1.4), dpi=100)
    for place, (arm, seconds) in enumerate(found.items()):
        median = statistics.median(seconds)
        axes.barh(place, median, color=COLOURS.get(arm.partition(",")[0], OTHER), height=0.6)
        axes.plot(seconds, [place] * len(seconds), "k|", markersize=8)
        axes.annotate(f"{median:.1f} s", (max(seconds), place), xytext=(6, -4), textcoords="offset points", fontsize=9)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_xscale("log")
    axes.set_xlabel("seconds from the first create until every job has its children (log scale; marks: trials)")
    axes.margins(x=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
