"""The curves over the number of ranks: as an SVG, as a page that needs nothing from elsewhere, as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtj.quantities import number, percent, step_time
from dtj.report.png import load_pyplot
from dtj.report.shapes import DARK, FONTS, LEFT, LIGHT, RIGHT, WIDTH, clean, document, html, label, stroke
from dtj.simulate.model import Row
from dtj.simulate.table import table

HEIGHT = 230.0
LABEL_PIXELS = 46.0
TITLE = "How fast with N ranks?"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel."""

    name: str
    colour: str
    """A name of `shapes.LIGHT`."""
    dashed: bool
    points: list[tuple[int, float]]
    """(ranks, value)"""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one axis, and measured points beside them."""

    title: str
    curves: list[Curve]
    measured: list[tuple[int, float]]
    logarithmic: bool
    """A panel that is not has shares from 0 to 1."""


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Returns samples/s, and the shares."""
    model = [row for row in rows if row.step is not None]
    real = [row for row in rows if row.source == "measured"]
    base = model[0]
    ideal = base.samples_per_second / base.weak / base.ranks
    speed = [
        Curve("samples/s", "steps", False, [(row.ranks, row.samples_per_second) for row in model]),
        Curve("without communication", "stop", True, [(row.ranks, row.ranks * ideal) for row in model]),
    ]
    shares = [
        Curve("weak efficiency", "steps", False, [(row.ranks, row.weak) for row in model]),
        Curve("strong efficiency", "load", False, [(row.ranks, row.strong) for row in model if row.strong is not None]),
        Curve(
            "communication",
            "lost",
            True,
            [(row.ranks, row.communication) for row in model if row.communication is not None],
        ),
        Curve("goodput", "down", False, [(row.ranks, row.goodput) for row in model if row.goodput is not None]),
    ]
    return [
        Panel("samples/s", speed, [(row.ranks, row.samples_per_second) for row in real], True),
        Panel("shares", [one for one in shares if one.points], [(row.ranks, row.weak) for row in real], False),
    ]


def svg(rows: Sequence[Row]) -> str:
    """Returns the drawing as an SVG document without an XML declaration, so that HTML can hold it."""
    parts, y = [label(LEFT, 26, TITLE, "title")], 44.0
    for panel in panels(rows):
        parts += _panel(panel, [row.ranks for row in rows], y)
        y += HEIGHT + 70
    return document("", TITLE, description(rows), _style(), parts, y)


def description(rows: Sequence[Row]) -> str:
    """Returns the drawing in words."""
    return " ".join(
        f"{row.ranks} ranks ({row.source}): {step_time(row.seconds)} a step, "
        f"{number(row.samples_per_second)} samples/s, weak efficiency {percent(row.weak)}."
        for row in rows
    )


def page(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Returns the page: the drawing, the table, the notes."""
    body = [
        f"<h1>{TITLE}</h1>",
        svg(rows),
        f"<pre>{clean(table(rows))}</pre>",
        *(f"<p>{clean(note)}</p>" for note in notes),
    ]
    return html(TITLE, body)


def write(path: Path, rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Writes the chart in the format of the file's name. Raises InputError for a PNG without matplotlib, OSError."""
    if path.suffix == ".png":
        _write_png(path, rows)
    else:
        path.write_text(svg(rows) + "\n" if path.suffix == ".svg" else page(rows, notes), encoding="utf-8")


def _style() -> str:
    def colours(theme: dict[str, str]) -> str:
        named = "".join(f".{name}{{stroke:{theme[name]}}}" for name in ("steps", "load", "lost", "down", "stop"))
        return (
            f"text{{fill:{theme['text']}}}.soft{{fill:{theme['soft']}}}.back{{fill:{theme['back']}}}"
            f".grid{{stroke:{theme['line']}}}.measured{{fill:{theme['text']}}}{named}"
        )

    lines = ".curve{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}"
    return f"{colours(LIGHT)}{FONTS}{lines}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"


def _panel(panel: Panel, ranks: Sequence[int], top: float) -> list[str]:
    first, last = math.log(min(ranks)), math.log(max(ranks))
    values = [value for curve in panel.curves for _, value in curve.points] + [value for _, value in panel.measured]
    low, high = (math.log10(min(values)), math.log10(max(values))) if panel.logarithmic else (0.0, 1.0)
    bottom, span = top + 34 + HEIGHT, high - low or 1.0

    def x(count: int) -> float:
        return LEFT + (math.log(count) - first) / (last - first or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        level = math.log10(value) if panel.logarithmic else min(value, 1.0)
        return bottom - (level - low) / span * HEIGHT

    parts, at = [], LEFT
    for curve in panel.curves:
        kind = f"{curve.colour} curve" + (" dashed" if curve.dashed else "")
        parts += [stroke(at, top + 12, at + 22, top + 12, kind), label(at + 28, top + 16, curve.name, "soft")]
        at += 50 + 7 * len(curve.name)
    if panel.measured:
        parts += [_dot(at + 6, top + 12, "measured"), label(at + 16, top + 16, "measured", "soft")]
    for tick in _ticks(panel, low, high):
        name = number(tick) if panel.logarithmic else f"{100 * tick:.0f} %"
        parts += [stroke(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"), label(LEFT - 8, y(tick) + 4, name, "end soft")]
    free = 0.0
    for count in dict.fromkeys(ranks):
        if x(count) >= free:
            parts.append(label(x(count), bottom + 18, str(count), "soft mid"))
            free = x(count) + LABEL_PIXELS
    parts.append(label(WIDTH - RIGHT, bottom + 34, "ranks", "end soft"))
    for curve in panel.curves:
        shown = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in curve.points)
        kind = f"{curve.colour} curve" + (" dashed" if curve.dashed else "")
        title = f"<title>{clean(curve.name)}</title>"
        parts.append(f'<polyline class="{kind}" stroke-linecap="round" points="{shown}">{title}</polyline>')
    return [*parts, *(_dot(x(count), y(value), f"{count} ranks, measured") for count, value in panel.measured)]


def _ticks(panel: Panel, low: float, high: float) -> list[float]:
    if not panel.logarithmic:
        return [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    decades = [10.0**power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    return decades if len(decades) > 1 else [10**low, 10**high]


def _dot(x: float, y: float, title: str) -> str:
    return f'<circle class="measured" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{clean(title)}</title></circle>'


def _write_png(path: Path, rows: Sequence[Row]) -> None:
    pyplot = load_pyplot(path)
    figure, axes = pyplot.subplots(2, 1, figsize=(10, 7), dpi=100, sharex=True)
    for axis, panel in zip(axes, panels(rows), strict=True):
        for curve in panel.curves:
            line = {"color": LIGHT[curve.colour], "linestyle": "--" if curve.dashed else "-", "label": curve.name}
            axis.plot([count for count, _ in curve.points], [value for _, value in curve.points], **line)
        if panel.measured:
            points = [count for count, _ in panel.measured], [value for _, value in panel.measured]
            axis.plot(*points, "o", color=LIGHT["text"], label="measured")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log" if panel.logarithmic else "linear")
        if not panel.logarithmic:
            axis.set_ylim(0, 1.02)
        axis.set_ylabel(panel.title, fontsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    shown = list(dict.fromkeys(row.ranks for row in rows))
    axes[-1].set_xticks(shown, [str(count) for count in shown], fontsize=8)
    axes[-1].set_xlabel("ranks", fontsize=8)
    figure.suptitle(TITLE, fontsize=9, x=0.02, ha="left")
    figure.tight_layout()
    figure.savefig(path, format="png")
    pyplot.close(figure)
