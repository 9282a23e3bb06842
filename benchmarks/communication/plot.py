"""The curve of loss against bytes, from the two tables that have them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.communication.loss import PLAIN
from benchmarks.communication.speed import DDP
from benchmarks.report import ratios

FIGURE = Path(__file__).resolve().parents[2] / "docs/figures/communication-loss.png"
LOSS, BYTES = "loss-300", "bytes"


def points(results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns (MB that a node sends in a step, loss relative to the uncompressed run) by arm, as medians.

    The bytes are those of the MLP of the speed tables, the loss is that of the GPT.
    """
    sent = results.get(BYTES, {}).get("rows", {})
    losses = results.get(LOSS, {}).get("rows", {})
    found = {}
    for arm in losses:
        megabytes = sent.get(DDP if arm == PLAIN else arm)
        if megabytes and PLAIN in losses:
            found[arm] = statistics.median(megabytes), statistics.median(ratios(losses, arm, PLAIN, "cost"))
    return found


def draw(results: Mapping[str, Any], path: Path = FIGURE) -> None:
    """Writes the plot as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=100)
    for arm, (megabytes, loss) in points(results).items():
        axes.scatter([megabytes], [100 * (loss - 1)], color="#1f6feb")
        axes.annotate(arm, (megabytes, 100 * (loss - 1)), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.axhline(1.0, color="#999999", linestyle="--", linewidth=1)
    axes.set_xlabel("MB that a node sends in a step of the MLP of 12.6 M parameters")
    axes.set_ylabel("validation loss of the GPT after 300 steps, % above none")
    axes.margins(x=0.15, y=0.1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
