"""The rows as a table for people, as JSON and as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dtj.bench.cores import SHARED, THREAD
from dtj.bench.link import BBR
from dtj.bench.plan import CLUSTER, PODS_OF_KIND, is_shaped
from dtj.bench.summary import Row, Spread, other_work
from dtj.quantities import UNKNOWN, number, percent, step_time

HEAD = (
    "scaling", "link", "batch", "ranks", "arm", "trials", "failed", "step", "quartiles", "samples/s", "efficiency",
    "communication", "overlap", "imbalance", "memory",
)  # fmt: skip
_LEFT = {"scaling", "link", "arm"}


def table(found: Sequence[Row], absent: Sequence[str]) -> str:
    """Returns the rows below each other, and a row for each arm that is not installed."""
    cells = [HEAD, *(_cells(row) for row in found)]
    cells += [(UNKNOWN,) * 4 + (arm, "not installed") + ("",) * (len(HEAD) - 6) for arm in absent]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(HEAD, line, widths, strict=True)
        ).rstrip()
        for line in cells
    )


def _cells(row: Row) -> tuple[str, ...]:
    cell, step = row.cell, row.step
    return (
        cell.scaling,
        cell.link,
        str(cell.batch),
        str(cell.world),
        cell.arm,
        str(row.trials),
        str(row.failures),
        step_time(step.median) if step else UNKNOWN,
        f"{step_time(step.low)} - {step_time(step.high)}" if step else UNKNOWN,
        number(row.rate.median) if row.rate else UNKNOWN,
        percent(row.efficiency),
        percent(row.communication),
        percent(row.overlap),
        percent(row.imbalance),
        UNKNOWN if row.memory is None else f"{row.memory / 1e6:,.0f} MB",
    )


def notes(found: Sequence[Row], absent: Sequence[str], setup: Mapping[str, Any]) -> list[str]:
    """Returns what a reader must know of the figures, a sentence each."""
    out = [
        f"{setup['model']}; {setup['steps']} timed steps after {setup['warmup']} that are dropped; {setup['device']}, "
        f"torch {setup['torch']}.",
        "step: median over the trials of each trial's median step. samples/s: over all timed steps, slow ones too.",
    ]
    if any(row.cores == PODS_OF_KIND for row in found):
        out.append("WARNING: all nodes of kind are one machine: rows with more ranks than its cores measure the cores.")
    if any(row.cell.link == CLUSTER for row in found):
        out.append(
            "cluster: each rank is a pod, kept on no core; torchrun-ddp is left out, where the agent starts ranks."
        )
    for share in dict.fromkeys(row.cores for row in found if row.cores in (THREAD, SHARED)):
        worlds = sorted({row.cell.world for row in found if row.cores == share})
        ranks = ", ".join(map(str, worlds))
        if share == SHARED:
            out.append(
                f"WARNING: {ranks} ranks are more than the cores: their rows measure the cores, not the scaling."
            )
        else:
            out.append(f"WARNING: of {ranks} ranks, some share a core by its hardware threads, and are slower for it.")
    scalings = dict.fromkeys(row.cell.scaling for row in found)
    if "weak" in scalings:
        out.append("weak: each rank has the batch. efficiency: samples/s of a rank over those in the smallest world.")
    if "strong" in scalings:
        out.append(
            "strong: all ranks share the batch. efficiency: samples/s of a rank over those in the smallest world."
        )
    out.append(
        "communication: share of a step in which a rank only waits for a collective. overlap: share of the "
        "communication that is hidden behind computation. imbalance: own time of the slowest rank over the mean, "
        "minus 1."
    )
    if any(is_shaped(row.cell.link) for row in found):
        out.append("A link joins two nodes with half of the ranks each; a single rank is on one of them.")
    if other := {row.tcp for row in found} - {"", BBR}:
        out.append(
            f"WARNING: TCP uses {', '.join(other)} on the links, because this kernel lacks bbr: it may not fill them."
        )
    flag = "--image" if any(row.cell.link == CLUSTER for row in found) else "--python"
    out += [f"{arm}: not installed where the ranks run; {flag} names another place." for arm in absent]
    out += [f"{row.cell.phrase()}: {row.failures} failed: {row.reason}" for row in found if row.failures]
    return out + other_work(found)


def document(found: Sequence[Row], absent: Sequence[str], setup: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of results.json; times are seconds, and shares are from 0 to 1."""
    return {
        "version": 1,
        "setup": dict(setup),
        "notes": notes(found, absent, setup),
        "notInstalled": list(absent),
        "rows": [
            asdict(row.cell) | {name: value for name, value in asdict(row).items() if name != "cell"} for row in found
        ],
    }


def as_csv(found: Sequence[Row]) -> str:
    """Returns the rows as CSV: a head, then a line each; empty where a figure is unknown."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    lines = [_flat(row) for row in found]
    if lines:
        writer.writerow(lines[0])
        writer.writerows(line.values() for line in lines)
    return out.getvalue()


def _flat(row: Row) -> dict[str, Any]:
    def spread(name: str, found: Spread | None) -> dict[str, Any]:
        names = {"median": "", "low": "_q1", "high": "_q3", "least": "_min", "most": "_max"}
        return {name + suffix: getattr(found, key) if found else None for key, suffix in names.items()}

    return {
        **asdict(row.cell),
        "global_batch": row.cell.global_batch,
        "cores": row.cores,
        "tcp": row.tcp,
        "trials": row.trials,
        "failures": row.failures,
        **spread("step_seconds", row.step),
        **spread("samples_per_second", row.rate),
        "efficiency": row.efficiency,
        "efficiency_base": row.base,
        "communication_share": row.communication,
        "overlap": row.overlap,
        "imbalance": row.imbalance,
        "memory_bytes": row.memory,
        "loss": row.loss,
        "reason": row.reason,
    }
