"""The time until the group trains again, by the answer to a lost rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kind.tables import CLAIMS, LADDER, seconds

FIGURE = Path(__file__).resolve().parents[2] / "docs/figures/recovery-ladder.png"
OURS, OTHER = "#1f6feb", "#d0a040"


def bars(results: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Returns the seconds of all trials by answer, the fastest last."""
    trials = results.get(LADDER, {}).get("trials", [])
    found = {arm: seconds([trial for trial in trials if trial["arm"] == arm]) for arm in CLAIMS}
    measured = [(arm, values) for arm, values in found.items() if values]
    return dict(sorted(measured, key=lambda each: -statistics.median(each[1])))


def draw(results: Mapping[str, Any], path: Path = FIGURE) -> None:
    """Writes the plot as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = bars(results)
    figure, axes = pyplot.subplots(figsize=(9, 0.45 * len(found) + 1.4), dpi=100)
    for place, (arm, values) in enumerate(found.items()):
        axes.barh(place, statistics.median(values), color=OURS if arm.startswith("dtj") else OTHER, height=0.6)
        axes.plot(values, [place] * len(values), "k|", markersize=8)
        label = f"{statistics.median(values):.2f} s"
        axes.annotate(label, (max(values), place), xytext=(6, -4), textcoords="offset points", fontsize=9)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_xlabel("seconds from the loss until all ranks have done a step again (bars: medians; marks: trials)")
    axes.margins(x=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
