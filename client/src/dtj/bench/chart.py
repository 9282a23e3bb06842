"""The curves of a bench over the number of ranks, a drawing for each scaling, link and batch: as SVG and as PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from dtj.bench.plan import CLUSTER, is_shaped
from dtj.bench.summary import Row
from dtj.quantities import number, percent, step_time
from dtj.report.panels import COLOURS, Curve, Panel, svg, write_png

PREFIX = "scaling-"


def write(folder: Path, found: Sequence[Row]) -> list[Path]:
    """Draws the rows into a folder. Returns the files; PNGs only where matplotlib is installed. Raises OSError."""
    paths: list[Path] = []
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    for (scaling, link, batch), group in groupby(
        found, key=lambda row: (row.cell.scaling, row.cell.link, row.cell.batch)
    ):
        rows = [row for row in group if row.rate is not None]
        if not rows:
            continue
        path = folder / f"{PREFIX}{scaling}-{link}-{batch}.svg"
        title = f"{batch} samples {'on each rank' if scaling == 'weak' else 'over all ranks'}"
        title += f", two nodes with a link of {link}" if is_shaped(link) else f", {link}" if link == CLUSTER else ""
        drawn, ranks = panels(rows), sorted({row.cell.world for row in rows})
        path.write_text(svg(title, description(rows), drawn, ranks) + "\n", encoding="utf-8")
        paths.append(path)
        if has_matplotlib:
            paths.append(path.with_suffix(".png"))
            write_png(paths[-1], title, drawn, ranks)
    return paths


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Returns samples/s with the spread over trials, the efficiency, and the share of communication."""
    arms = list(dict.fromkeys(row.cell.arm for row in rows))
    speed, efficiency, communication = [], [], []
    for at, arm in enumerate(arms):
        own = [row for row in rows if row.cell.arm == arm]
        look = arm, COLOURS[at % len(COLOURS)], at >= len(COLOURS)
        bars = [(row.cell.world, row.rate.least, row.rate.most) for row in own if row.rate is not None]
        speed.append(Curve(*look, [(row.cell.world, row.rate.median) for row in own if row.rate is not None], bars))
        efficiency.append(Curve(*look, [(row.cell.world, row.efficiency) for row in own if row.efficiency is not None]))
        communication.append(
            Curve(*look, [(row.cell.world, row.communication) for row in own if row.communication is not None])
        )
    most = max((value for curve in efficiency for _, value in curve.points), default=1.0)
    found = [
        Panel("samples/s", speed, [], True),
        Panel("efficiency", efficiency, [], False, top=max(1.0, math.ceil(most * 10) / 10)),
    ]
    known = [curve for curve in communication if curve.points]
    return [*found, Panel("communication", known, [], False)] if known else found


def description(rows: Sequence[Row]) -> str:
    """Returns the drawing in words."""
    return " ".join(
        f"{row.cell.arm}, {row.cell.world} ranks: {step_time(row.step.median)} a step, {number(row.rate.median)} "
        f"samples/s, efficiency {percent(row.efficiency)}."
        for row in rows
        if row.step is not None and row.rate is not None
    )
