"""Curves over the number of ranks, in panels below each other: as an SVG and as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtj.quantities import number
from dtj.report.png import load_pyplot
from dtj.report.shapes import DARK, FONTS, LEFT, LIGHT, RIGHT, WIDTH, clean, document, label, stroke

HEIGHT = 230.0
LABEL_PIXELS = 46.0
COLOURS = ("steps", "load", "lost", "down", "stop", "stall")
"""Of curves, by their names in `shapes.LIGHT`."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel."""

    name: str
    colour: str
    """One of COLOURS."""
    dashed: bool
    points: list[tuple[int, float]]
    """(ranks, value)"""
    bars: list[tuple[int, float, float]] = field(default_factory=list)
    """(ranks, low, high): the spread of a point."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one axis, and measured points beside them."""

    title: str
    curves: list[Curve]
    measured: list[tuple[int, float]]
    logarithmic: bool
    """A panel that is not has shares from 0 to `top`."""
    top: float = 1.0


def svg(title: str, description: str, panels: Sequence[Panel], ranks: Sequence[int]) -> str:
    """Returns the drawing as an SVG document without an XML declaration, so that HTML can hold it."""
    parts, y = [label(LEFT, 26, title, "title")], 44.0
    for panel in panels:
        parts += _panel(panel, ranks, y)
        y += HEIGHT + 70
    return document("", title, description, _style(), parts, y)


def write_png(path: Path, title: str, panels: Sequence[Panel], ranks: Sequence[int]) -> None:
    """Draws the panels as a PNG. Raises InputError if matplotlib is not installed."""
    pyplot = load_pyplot(path)
    count = len(panels)
    figure, axes = pyplot.subplots(count, 1, figsize=(10, 3.5 * count), dpi=100, sharex=True, squeeze=False)
    for (axis,), panel in zip(axes, panels, strict=True):
        _draw(axis, panel)
    shown = list(dict.fromkeys(ranks))
    last = axes[-1][0]
    last.set_xticks(shown, [str(count) for count in shown], fontsize=8)
    last.set_xlabel("ranks", fontsize=8)
    figure.suptitle(title, fontsize=9, x=0.02, ha="left", parse_math=False)
    figure.tight_layout()
    figure.savefig(path, format="png")
    pyplot.close(figure)


def _draw(axis: Any, panel: Panel) -> None:
    for curve in panel.curves:
        line = {"color": LIGHT[curve.colour], "linestyle": "--" if curve.dashed else "-", "label": curve.name}
        axis.plot([count for count, _ in curve.points], [value for _, value in curve.points], **line)
        for count, low, high in curve.bars:
            axis.vlines(count, low, high, color=LIGHT[curve.colour], linewidth=1)
    if panel.measured:
        points = [count for count, _ in panel.measured], [value for _, value in panel.measured]
        axis.plot(*points, "o", color=LIGHT["text"], label="measured")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log" if panel.logarithmic else "linear")
    if not panel.logarithmic:
        axis.set_ylim(0, 1.02 * panel.top)
    axis.set_ylabel(panel.title, fontsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _style() -> str:
    def colours(theme: dict[str, str]) -> str:
        named = "".join(f".{name}{{stroke:{theme[name]}}}" for name in COLOURS)
        return (
            f"text{{fill:{theme['text']}}}.soft{{fill:{theme['soft']}}}.back{{fill:{theme['back']}}}"
            f".grid{{stroke:{theme['line']}}}.measured{{fill:{theme['text']}}}{named}"
        )

    lines = ".curve{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}"
    return f"{colours(LIGHT)}{FONTS}{lines}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"


def _panel(panel: Panel, ranks: Sequence[int], top: float) -> list[str]:
    first, last = math.log(min(ranks)), math.log(max(ranks))
    values = [value for curve in panel.curves for _, value in curve.points] + [value for _, value in panel.measured]
    values += [value for curve in panel.curves for _, *ends in curve.bars for value in ends]
    low, high = (math.log10(min(values)), math.log10(max(values))) if panel.logarithmic else (0.0, panel.top)
    bottom, span = top + 34 + HEIGHT, high - low or 1.0

    def x(count: int) -> float:
        return LEFT + (math.log(count) - first) / (last - first or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        level = math.log10(value) if panel.logarithmic else min(value, panel.top)
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
        parts += [stroke(x(n), y(below), x(n), y(above), f"{curve.colour} bar") for n, below, above in curve.bars]
    return [*parts, *(_dot(x(count), y(value), f"{count} ranks, measured") for count, value in panel.measured)]


def _ticks(panel: Panel, low: float, high: float) -> list[float]:
    if not panel.logarithmic:
        return [0.2 * panel.top * at for at in range(6)]
    decades = [10.0**power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    return decades if len(decades) > 1 else [10**low, 10**high]


def _dot(x: float, y: float, title: str) -> str:
    return f'<circle class="measured" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{clean(title)}</title></circle>'
