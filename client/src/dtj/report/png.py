"""The timeline as a PNG. matplotlib draws it, which the client does not require."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dtj.errors import InputError
from dtj.report.evidence import Evidence
from dtj.report.scale import thinned, time_ticks
from dtj.report.shapes import LIGHT
from dtj.report.svg import CLASSES, POINTS, headline, recovery_text
from dtj.report.timeline import State, Timeline

SHARE = 0.002
"""The least width of a span, as a share of the job."""


def load_pyplot(path: Path) -> Any:
    """Returns matplotlib.pyplot to draw this file with. Raises InputError if matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        remedy = "install matplotlib there, or write .html or .svg, which need nothing"
        raise InputError(f"{path}: a PNG needs matplotlib, which {sys.executable} does not have: {remedy}") from error
    return pyplot


def write_png(path: Path, facts: Evidence, line: Timeline) -> None:
    """Draws the timeline. Raises InputError if matplotlib is not installed."""
    pyplot = load_pyplot(path)
    height = 1.6 + min(4.0, 0.25 * len(line.rows))
    figure, (ranks, loss) = pyplot.subplots(
        2, 1, figsize=(10, height + 2), dpi=100, sharex=True, height_ratios=[height, 2]
    )
    _draw_ranks(ranks, facts, line)
    _draw_loss(loss, facts)
    texts = [f"{facts.name}: {headline(facts)}", *(recovery_text(recovery) for recovery in facts.recoveries)]
    figure.suptitle("\n".join(texts), fontsize=9, x=0.02, ha="left", parse_math=False)
    figure.tight_layout()
    figure.savefig(path, format="png")
    pyplot.close(figure)


def _draw_ranks(axes: Any, facts: Evidence, line: Timeline) -> None:
    shortest = SHARE * (facts.end - facts.begin)
    for state in State:
        for at, row in enumerate(line.rows):
            found = [(span.begin - facts.begin, max(span.end - span.begin, shortest))
                     for span in row.spans if span.state is state]  # fmt: skip
            if found:
                height = 0.9 if len(line.rows) <= 64 else 1.0
                axes.broken_barh(found, (at - height / 2, height), color=LIGHT[CLASSES[state]], linewidth=0)
    shown = [state for state in State if any(span.state is state for row in line.rows for span in row.spans)]
    patches = [axes.bar(0, 0, color=LIGHT[CLASSES[state]], label=state.value) for state in shown]
    axes.legend(handles=patches, fontsize=7, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    marked = thinned(range(len(line.rows)), 24)
    axes.set_yticks(list(marked), [line.rows[at].label for at in marked], fontsize=8)
    axes.set_ylim(len(line.rows) - 0.5, -0.5)


def _draw_loss(axes: Any, facts: Evidence) -> None:
    for attempt in sorted({sample.attempt for sample in facts.samples}):
        points = [(s.time - facts.begin, s.loss) for s in facts.samples if s.attempt == attempt and s.loss is not None]
        kept = thinned(points, POINTS)
        axes.plot([x for x, _ in kept], [y for _, y in kept], linewidth=1, label=f"attempt {attempt}")
    ticks = time_ticks(facts.end - facts.begin)
    axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=8)
    axes.set_xlim(0, facts.end - facts.begin)
    axes.set_ylabel("loss", fontsize=8)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=7)
