"""The curves over the number of ranks: as an SVG, as a page that needs nothing from elsewhere, as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dtj.quantities import number, percent, step_time
from dtj.report.panels import Curve, Panel, write_png
from dtj.report.panels import svg as drawn
from dtj.report.shapes import clean, html
from dtj.simulate.model import Row
from dtj.simulate.table import table

TITLE = "How fast with N ranks?"


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
    return drawn(TITLE, description(rows), panels(rows), [row.ranks for row in rows])


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
        write_png(path, TITLE, panels(rows), [row.ranks for row in rows])
    else:
        path.write_text(svg(rows) + "\n" if path.suffix == ".svg" else page(rows, notes), encoding="utf-8")
