"""The report as a PNG. matplotlib draws it, which the client does not require."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtj.errors import InputError
from dtj.report.content import Content
from dtj.report.evidence import Evidence
from dtj.report.figure import Bars, Chart, Columns, Figure, Heat, Span
from dtj.report.scale import thinned, time_ticks, value_ticks
from dtj.report.shapes import LIGHT
from dtj.report.svg import CLASSES, POINTS, headline, recovery_text
from dtj.report.timeline import State, Timeline

SHARE = 0.002
"""The least width of a span, as a share of the job."""
FIGURE_INCHES, ROW_INCHES = 1.9, 0.24
MOST_NAMES = 24
LETTERS = 140
"""Letters of a line that fit above the drawing."""


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


def write_png(path: Path, shown: Content) -> None:
    """Draws the timeline and the figures of all sections. Raises InputError if matplotlib is not installed."""
    pyplot = load_pyplot(path)
    facts, line, found = shown.run.facts, shown.line, shown.run.verdict
    figures = [(section.heading, figure) for section in shown.sections for figure in section.figures]
    heights = [1.6 + min(4.0, 0.25 * len(line.rows)), 2.0, *(_inches(figure) for _, figure in figures)]
    sheet, axes = pyplot.subplots(
        len(heights), 1, figsize=(10, sum(heights)), dpi=100, height_ratios=heights, layout="constrained"
    )
    _draw_ranks(axes[0], facts, line)
    _draw_loss(axes[1], facts)
    _time_axis(axes[0], Span(begin=0, end=facts.end - facts.begin))
    for field, (heading, figure) in zip(axes[2:], figures, strict=True):
        field.set_title(f"{heading}: {figure.title}", fontsize=8, loc="left", parse_math=False)
        _draw(field, figure)
    texts = [f"{facts.name}: {headline(facts)}", *(recovery_text(recovery) for recovery in facts.recoveries)]
    texts += textwrap.wrap(f"{found.bound}: {found.shown_by}", LETTERS) if figures else []
    sheet.suptitle("\n".join(texts), fontsize=9, x=0.02, ha="left", parse_math=False)
    sheet.savefig(path, format="png")
    pyplot.close(sheet)


def _inches(figure: Figure) -> float:
    if isinstance(figure, Bars | Heat):
        return 0.9 + ROW_INCHES * min(len(figure.rows), MOST_NAMES)
    return FIGURE_INCHES


def _draw(field: Any, figure: Figure) -> None:
    if isinstance(figure, Chart):
        _chart(field, figure)
    elif isinstance(figure, Columns):
        _columns(field, figure)
    elif isinstance(figure, Bars):
        _bars(field, figure)
    else:
        _heat(field, figure)


def _chart(field: Any, chart: Chart) -> None:
    for one in chart.curves:
        for number, piece in enumerate(one.pieces):
            # A single point is a dot, as in the SVG.
            marker = "." if len(piece) == 1 else None
            name = one.name if number == 0 else None
            xs, ys = [x for x, _ in piece], [y for _, y in piece]
            field.plot(xs, ys, color=LIGHT[one.colour], linewidth=1.2, marker=marker, label=name)
    values = [value for one in chart.curves for piece in one.pieces for _, value in piece]
    _value_axis(field, values, chart.text, chart.top, chart.unit)
    _time_axis(field, chart.span)
    _legend(field, len(chart.curves))


def _columns(field: Any, shown: Columns) -> None:
    lows = [0.0] * len(shown.columns)
    begins = [column.begin for column in shown.columns]
    widths = [column.end - column.begin for column in shown.columns]
    for at, (name, colour) in enumerate(shown.parts):
        heights = [column.values[at] for column in shown.columns]
        field.bar(begins, heights, widths, bottom=lows, align="edge", color=LIGHT[colour], label=name)
        lows = [low + height for low, height in zip(lows, heights, strict=True)]
    _value_axis(field, [0.0, *lows], shown.text)
    _time_axis(field, shown.span)
    _legend(field, len(shown.parts))


def _bars(field: Any, bars: Bars) -> None:
    lefts = [0.0] * len(bars.rows)
    for at, (name, colour) in enumerate(bars.parts):
        widths = [values[at] for _, values in bars.rows]
        field.barh(range(len(bars.rows)), widths, left=lefts, color=LIGHT[colour], label=name)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    field.set_yticks(range(len(bars.rows)), [name for name, _ in bars.rows], fontsize=8)
    field.set_ylim(len(bars.rows) - 0.5, -0.5)
    longest = max(lefts, default=0.0) or 1.0
    field.set_xlim(0, longest)
    ticks = value_ticks(0.0, longest)
    field.set_xticks(ticks, [bars.text(value) for value in ticks], fontsize=7)
    _legend(field, len(bars.parts))


def _heat(field: Any, heat: Heat) -> None:
    from matplotlib import colors

    for at, (_, cells) in enumerate(heat.rows):
        fields = [(cell.begin, cell.end - cell.begin) for cell in cells]
        shades = [colors.to_rgba(LIGHT["hot"], 0.06 + 0.94 * cell.heat) for cell in cells]
        field.broken_barh(fields, (at - 0.47, 0.94), facecolors=shades, linewidth=0)
        for cell in cells if heat.columns and len(heat.rows) <= MOST_NAMES else ():
            middle = (cell.begin + cell.end) / 2
            field.text(middle, at, cell.text, fontsize=7, ha="center", va="center", parse_math=False)
    named = thinned(range(len(heat.rows)), MOST_NAMES)
    field.set_yticks(list(named), [heat.rows[at][0] for at in named], fontsize=8)
    field.set_ylim(len(heat.rows) - 0.5, -0.5)
    if heat.span is None:
        field.set_xlim(0, len(heat.columns))
        field.set_xticks([at + 0.5 for at in range(len(heat.columns))], heat.columns, fontsize=7)
    else:
        _time_axis(field, heat.span)


def _value_axis(
    field: Any, values: list[float], text: Callable[[float], str], top: float | None = None, unit: float = 1.0
) -> None:
    from matplotlib import ticker

    low, high = min(values), top or max(values)
    if top is None and low > 0 and high / low > 30:
        field.set_yscale("log")
        field.yaxis.set_major_locator(ticker.LogLocator())
    else:
        low, high = min(low, 0.0), high * 1.04 if high > 0 else 1.0
        field.set_ylim(low, high)
        field.set_yticks([value * unit for value in value_ticks(low / unit, high / unit)])
    field.yaxis.set_major_formatter(lambda value, _: text(value))
    field.tick_params(axis="y", labelsize=7)
    field.grid(alpha=0.3)


def _time_axis(field: Any, span: Span) -> None:
    if span.is_time:
        ticks = time_ticks(span.end - span.begin)
        field.set_xticks([span.begin + at for at, _ in ticks], [text for _, text in ticks], fontsize=7)
    else:
        field.tick_params(axis="x", labelsize=7)
    field.set_xlim(span.begin, span.end)


def _legend(field: Any, entries: int) -> None:
    if entries > 1:
        field.legend(fontsize=7, ncols=6, loc="lower right", bbox_to_anchor=(1, 0.98), frameon=False)


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
    marked = thinned(range(len(line.rows)), MOST_NAMES)
    axes.set_yticks(list(marked), [line.rows[at].label for at in marked], fontsize=8)
    axes.set_ylim(len(line.rows) - 0.5, -0.5)


def _draw_loss(axes: Any, facts: Evidence) -> None:
    for attempt in sorted({sample.attempt for sample in facts.samples}):
        points = [(s.time - facts.begin, s.loss) for s in facts.samples if s.attempt == attempt and s.loss is not None]
        kept = thinned(points, POINTS)
        axes.plot([x for x, _ in kept], [y for _, y in kept], linewidth=1, label=f"attempt {attempt}")
    _time_axis(axes, Span(begin=0, end=facts.end - facts.begin))
    axes.set_ylabel("loss", fontsize=8)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=7)
