"""Draws the figures of a report as SVG: curves, stacked columns, bars and heat maps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dtj.report.figure import Bars, Chart, Columns, Figure, Heat, Section, Span
from dtj.report.scale import time_ticks, value_axis, value_ticks
from dtj.report.shapes import DARK, FONTS, LEFT, LIGHT, RIGHT, WIDTH, box, curve, document, label, stroke

HEIGHT = 150.0
ROW, MOST_ROWS_HEIGHT, NAMED_ROW = 22.0, 440.0, 11.0
"""Pixels: a row of bars or cells, the most of all rows together, and the least that a label needs."""
LETTER = 6.6
"""Pixels of a letter, roughly, to see whether a text has room."""
LEGEND_ROW = 18.0
COLOURS = (
    "compute", "data", "wire", "save", "other", "first", "second", "third", "lost", "stop", "load", "unknown",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plot:
    """The field of a figure between its margins."""

    span: Span
    top: float
    bottom: float

    def x(self, at: float) -> float:
        share = (at - self.span.begin) / ((self.span.end - self.span.begin) or 1.0)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, share: float) -> float:
        return self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top)


def style() -> str:
    """Returns the colours, light and dark, and the fonts of all figures."""

    def colours(theme: dict[str, str]) -> str:
        named = "".join(
            f".{name}{{fill:{theme[name]}}}.curve.{name}{{fill:none;stroke:{theme[name]}}}" for name in COLOURS
        )
        return (
            f"text{{fill:{theme['text']}}}.soft{{fill:{theme['soft']}}}.back{{fill:{theme['back']}}}"
            f".hot{{fill:{theme['hot']}}}.grid{{stroke:{theme['line']}}}{named}"
        )

    lines = ".curve{stroke-width:1.8;stroke-linejoin:round}.head{font-weight:600}"
    return f"{colours(LIGHT)}{FONTS}{lines}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"


def section_svg(section: Section) -> str:
    """Returns the figures of a section below each other, as a document that HTML can hold."""
    parts, y = figures(section.figures, 6.0)
    name = "".join(letter for letter in section.heading.lower() if letter.isalnum())
    return document(name, section.heading, " ".join(section.texts), style(), parts, y)


def figures(shown: Iterable[Figure], y: float) -> tuple[list[str], float]:
    """Returns the shapes of some figures from `y` downwards, and the end of the last one."""
    parts: list[str] = []
    named: tuple[tuple[str, str], ...] = ()
    for figure in shown:
        parts.append(label(LEFT, y + 12, figure.title, "head"))
        y += 18
        names = _names(figure)
        if len(names) > 1 and names != named:
            legend, y = _legend(names, y)
            parts += legend
        named = names
        drawn, y = _draw(figure, y)
        parts += drawn
        y += 14
    return parts, y


def _names(figure: Figure) -> tuple[tuple[str, str], ...]:
    """Returns (name, colour) of the parts of a figure. The title names a single one."""
    if isinstance(figure, Chart):
        return tuple((one.name, one.colour) for one in figure.curves)
    return () if isinstance(figure, Heat) else figure.parts


def _draw(figure: Figure, y: float) -> tuple[list[str], float]:
    if isinstance(figure, Chart):
        return _chart(figure, y)
    if isinstance(figure, Columns):
        return _columns(figure, y)
    return _bars(figure, y) if isinstance(figure, Bars) else _heat(figure, y)


def _chart(chart: Chart, y: float) -> tuple[list[str], float]:
    place, ticks = chart_axis(chart)
    plot = _Plot(chart.span, y + 6, y + HEIGHT)
    parts = _grid(plot, ticks)
    for one in chart.curves:
        for piece in one.pieces:
            points = [(plot.x(at), plot.y(place(value))) for at, value in piece]
            parts.append(curve(f"curve {one.colour}", points, f"{one.name}: {chart.text(piece[-1][1])} at the end"))
    return [*parts, *_axis(plot)], plot.bottom + 26


def _columns(shown: Columns, y: float) -> tuple[list[str], float]:
    highest = max((sum(column.values) for column in shown.columns), default=0.0) or 1.0
    place, ticks = value_axis([0.0, highest], shown.text)
    plot = _Plot(shown.span, y + 6, y + HEIGHT)
    parts = _grid(plot, ticks)
    for column in shown.columns:
        left, low = plot.x(column.begin), 0.0
        width = max(plot.x(column.end) - left, 0.5)
        for (name, colour), value in zip(shown.parts, column.values, strict=True):
            if value > 0:
                top, bottom = plot.y(place(low + value)), plot.y(place(low))
                parts.append(box(left, top, width, bottom - top, colour, f"{name}: {shown.text(value)}"))
            low += value
    return [*parts, *_axis(plot)], plot.bottom + 26


def _bars(bars: Bars, y: float) -> tuple[list[str], float]:
    longest = max((sum(values) for _, values in bars.rows), default=0.0) or 1.0
    parts, y = list[str](), y + 4
    scale = (WIDTH - LEFT - RIGHT) / longest
    for name, values in bars.rows:
        x = LEFT
        parts.append(label(LEFT - 8, y + 14, _cut(name), "end"))
        for (part, colour), value in zip(bars.parts, values, strict=True):
            width, text = value * scale, bars.text(value)
            if width > 0:
                parts.append(box(x, y, width, ROW - 4, colour, f"{name}, {part}: {text}"))
            if width > LETTER * len(text) + 8:
                parts.append(label(x + 4, y + 13, text))
            x += width
        y += ROW
    return parts, y


def _heat(heat: Heat, y: float) -> tuple[list[str], float]:
    height = min(ROW, MOST_ROWS_HEIGHT / max(1, len(heat.rows)))
    span = heat.span or Span(begin=0.0, end=float(max(1, len(heat.columns))))
    parts = [label(LEFT, y + 10, heat.legend, "soft")]
    y += 16
    plot = _Plot(span, y, y)
    if heat.columns:
        y += 14
        parts += [
            label((plot.x(at) + plot.x(at + 1)) / 2, y - 3, name, "soft mid") for at, name in enumerate(heat.columns)
        ]
    labelled = float("-inf")
    top, gap = y, 1.0 if height >= 6 else 0.0
    for name, cells in heat.rows:
        if y - labelled >= NAMED_ROW:
            parts.append(label(LEFT - 8, y + height / 2 + 4, name, "end"))
            labelled = y
        for cell in cells:
            left = plot.x(cell.begin)
            width = max(plot.x(cell.end) - left, 0.5)
            shape = box(left, y, width, height - gap, "hot", f"{name}: {cell.text}" if heat.columns else cell.text)
            parts.append(shape.replace("<rect ", f'<rect fill-opacity="{0.06 + 0.94 * cell.heat:.2f}" ', 1))
            if heat.columns and height >= NAMED_ROW:
                parts.append(label(left + width / 2, y + height / 2 + 4, cell.text, "mid"))
        y += height
    if heat.span is not None:
        return [*parts, *_axis(_Plot(span, top, y + 2))], y + 28
    return parts, y


def chart_axis(chart: Chart) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Returns the place of a value on a chart's axis, 0 to 1, and (place, text) of its ticks."""
    top, unit = chart.top, chart.unit
    if top is not None:
        return lambda value: value / top, [(value / top, chart.text(value)) for value in value_ticks(0.0, top)]
    values = [value / unit for one in chart.curves for piece in one.pieces for _, value in piece]
    place, ticks = value_axis(values, lambda value: chart.text(value * unit))
    return lambda value: place(value / unit), ticks


def _grid(plot: _Plot, ticks: Iterable[tuple[float, str]]) -> list[str]:
    parts = []
    for share, text in ticks:
        y = plot.y(share)
        parts += [stroke(LEFT, y, WIDTH - RIGHT, y, "grid"), label(LEFT - 8, y + 4, text, "end soft")]
    return parts


def _axis(plot: _Plot) -> list[str]:
    begin, end = plot.span.begin, plot.span.end
    if plot.span.is_time:
        ticks = [(begin + at, text) for at, text in time_ticks(end - begin)]
    else:
        ticks = [(at, f"{at:,.0f}") for at in value_ticks(begin, end if end > begin else begin + 1.0, 8)]
    parts = [stroke(LEFT, plot.bottom, WIDTH - RIGHT, plot.bottom, "grid")]
    for at, text in ticks:
        x = plot.x(at)
        parts += [stroke(x, plot.bottom, x, plot.bottom + 4, "grid"), label(x, plot.bottom + 17, text, "soft mid")]
    if not plot.span.is_time:
        parts.append(label(LEFT - 8, plot.bottom + 17, "step", "soft end"))
    return parts


def _legend(parts: Sequence[tuple[str, str]], y: float) -> tuple[list[str], float]:
    """Returns the names of some colours, and the end of their last row."""
    drawn, x = [], LEFT
    for name, colour in parts:
        width = 22 + LETTER * len(name)
        if x + width > WIDTH - RIGHT and x > LEFT:
            x, y = LEFT, y + LEGEND_ROW
        drawn.append(f'<rect class="{colour}" x="{x:.0f}" y="{y:.0f}" width="11" height="11" rx="2"/>')
        drawn.append(label(x + 16, y + 10, name, "soft"))
        x += width + 10
    return drawn, y + LEGEND_ROW


def _cut(name: str, most: int = 14) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
