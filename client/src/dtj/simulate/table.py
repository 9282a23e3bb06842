"""The rows as a table for people and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dtj import durations
from dtj.report.scale import number
from dtj.simulate.model import Row, Setup

HEAD = ("ranks", "source", "step", "samples/s", "weak", "strong", "communication", "goodput", "checkpoint every")
UNKNOWN = "-"


def table(rows: Sequence[Row]) -> str:
    """Returns the rows below each other, right-aligned."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.ranks),
        row.source,
        step_time(row.seconds),
        number(row.samples_per_second),
        percent(row.weak),
        percent(row.strong),
        percent(row.communication),
        percent(row.goodput),
        UNKNOWN if row.checkpoint_seconds is None else durations.format_duration(row.checkpoint_seconds),
    )


def step_time(seconds: float) -> str:
    """Formats the time of a step: `0.42 ms`, `105 ms`, `2.31 s`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def percent(share: float | None) -> str:
    """Formats a share; `-` if it is unknown."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def notes(setup: Setup, *, local_given: bool) -> list[str]:
    """Returns what a reader must know of the figures, a sentence each."""
    profile, network = setup.profile, setup.network
    origin = f"measured ({profile.measured})" if profile.measured else "not measured"
    out = [
        f"The profile of one rank is {origin}; a modelled row follows from it and from the links.",
        f"weak: each rank has the profile's {profile.samples:.10g} samples. strong: all ranks together have "
        f"{setup.global_batch or profile.samples:.10g} samples.",
    ]
    if network.ranks_per_node > 1 and not local_given:
        out.append("Without --local-link, the ranks of a node are as far from each other as the nodes are (--link).")
    if not profile.spread:
        out.append("The profile has no spread of the step's time, so no rank waits for a slower one.")
    if setup.failures is None:
        out.append("Without --mtbf there is no goodput.")
    elif setup.failures.interval is None:
        out.append("checkpoint every: Daly's best interval, at which the goodput is computed.")
    return out


def document(rows: Sequence[Row], remarks: Sequence[str]) -> dict[str, Any]:
    """Returns what `-o json` prints; times are seconds, and shares are from 0 to 1."""
    return {"version": 1, "notes": list(remarks), "rows": [_object(row) for row in rows]}


def _object(row: Row) -> dict[str, Any]:
    return {
        "ranks": row.ranks,
        "source": row.source,
        "stepSeconds": row.seconds,
        "samplesPerSecond": row.samples_per_second,
        "weakEfficiency": row.weak,
        "strongEfficiency": row.strong,
        "communicationShare": row.communication,
        "goodput": row.goodput,
        "checkpointEverySeconds": row.checkpoint_seconds,
        "parts": asdict(row.step) if row.step else None,
    }
