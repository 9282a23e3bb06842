"""Turns measured rows into Markdown tables: medians, worst values, and ratios taken trial by trial."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Rows = dict[str, list[float]]
"""The values of each arm, one per trial; the same index in two lists is the same trial."""


Ratio = Literal["throughput", "cost", "share", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The presentation of rows that are measured elsewhere."""

    title: str
    unit: str
    ratio: Ratio = "none"
    """throughput: reference / arm, at least the target.

    cost: arm / reference, at most the target. share: arm / reference, at least the target.
    """
    more_is_better: bool = False
    """Whether larger figures (not ratios) are better."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """The reference of each arm; `*` is the reference of all others."""
    target: Mapping[str, float] = field(default_factory=dict)
    """The target of each arm's ratio, or of its median if the table has no ratio."""
    note: str = ""


Tables = Mapping[str, Table]


def ratios(rows: Rows, arm: str, reference: str, kind: Ratio) -> list[float]:
    """Returns the ratio of each trial, in which a disturbance that lasts longer than a trial cancels out.

    If the two were not measured equally often, the reference's median stands in for each of its trials.
    """
    own, base = rows[arm], rows[reference]
    if len(own) != len(base):
        base = [statistics.median(base)] * len(own)
    return [b / o if kind == "throughput" else o / b for o, b in zip(own, base, strict=True)]


def render(table: Table, rows: Rows, circumstances: str) -> str:
    """Returns a table as Markdown."""
    out = [f"**{table.title}**", ""]
    head = ["arm", f"median {table.unit}", f"worst {table.unit}"]
    if table.ratio != "none":
        head += ["throughput" if table.ratio == "throughput" else "ratio", "half of the trials", "beside"]
    if table.target:
        head.append("target")
    out += ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for arm, values in rows.items():
        median = statistics.median(values)
        cells = [arm, _number(median), _number(min(values) if table.more_is_better else max(values))]
        judged = median
        if table.ratio != "none":
            reference = table.beside.get(arm, table.beside.get("*"))
            if reference is None or reference == arm:
                cells += ["1", "", ""]
            elif reference not in rows:
                cells += ["not measured yet", "", reference]
            else:
                per_trial = ratios(rows, arm, reference, table.ratio)
                judged = statistics.median(per_trial)
                low, high = _quartiles(per_trial)
                cells += [f"**{judged:.2f}x**", f"{low:.2f} to {high:.2f}", reference]
        if table.target:
            known = table.ratio == "none" or table.beside.get(arm, table.beside.get("*")) in rows
            cells.append(_verdict(table, arm, judged) if known else "not measured yet" if arm in table.target else "")
        out.append("| " + " | ".join(cells) + " |")
    for arm in dict.fromkeys(table.beside.values()):
        if arm not in rows:
            out.append("| " + " | ".join([arm, "not measured yet", *[""] * (len(head) - 2)]) + " |")
    return "\n".join([*out, "", f"{table.note} {circumstances}".strip(), ""])


def markdown(
    title: str, columns: Mapping[str, Literal["left", "right"]], rows: Iterable[Sequence[str]], *notes: str
) -> str:
    """Returns a table as Markdown: a title, a row for each of `rows`, and paragraphs below.

    `columns`: the heads, each with the side to which its cells are aligned.
    """
    sides = ["---:" if side == "right" else "---" for side in columns.values()]
    lines = ["| " + " | ".join(cells) + " |" for cells in (list(columns), *rows)]
    out = [f"**{title}**", "", lines[0], "|" + "|".join(sides) + "|", *lines[1:]]
    return "\n".join([*out, *(line for note in notes for line in ("", note)), ""])


def circumstances(trials: int, extra: str = "") -> str:
    """Describes a measurement that begins now: the machine, and its load before the first trial."""
    load = f"load {os.getloadavg()[0]:.1f} before the first trial"
    parts = [
        f"{trials} trials",
        f"{os.cpu_count()} cores ({platform.machine()})",
        load,
        f"torch {torch.__version__}",
        extra,
    ]
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}: {', '.join(p for p in parts if p)}."


def loads(trials: Iterable[Mapping[str, Any]]) -> str:
    """Describes the load before the trials, each of which has `load`."""
    found = [trial["load"] for trial in trials]
    return f"Load before a trial: {statistics.median(found):.1f} (median), {max(found):.1f} (highest)."


def _verdict(table: Table, arm: str, value: float) -> str:
    if arm not in table.target:
        return ""
    target = table.target[arm]
    at_least = table.ratio in ("throughput", "share") or (table.ratio == "none" and table.more_is_better)
    met = value >= target if at_least else value <= target
    return f"{'≥' if at_least else '≤'} {target:g}{'x' if table.ratio != 'none' else ''}: {'met' if met else 'missed'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True, slots=True)
class Page:
    """The folder of one benchmark, with its README.md and results.json."""

    folder: Path

    @property
    def readme(self) -> Path:
        """The page with the rendered tables."""
        return self.folder / "README.md"

    @property
    def results(self) -> Path:
        """The measurements of all tables."""
        return self.folder / "results.json"

    def load(self, path: Path | None = None) -> dict[str, Any]:
        """Returns what was measured, by table; {} if there is no file."""
        path = path or self.results
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def filled(self, titles: Mapping[str, str], render: Callable[[str, Any], str]) -> str:
        """Returns the README with a table for each result, and a line for each title without one."""
        results, text = self.load(), self.readme.read_text()
        for key, title in titles.items():
            content = render(key, results[key]) if key in results else f"**{title}**: not measured yet.\n"
            text = put(text, key, content)
        return text


@dataclass(frozen=True, slots=True)
class Report(Page):
    """The tables of one benchmark that compares rows of figures."""

    tables: Tables

    def save(self, path: Path, measured: Mapping[str, tuple[Rows, str]]) -> None:
        """Writes (rows, circumstances) by table into the file; tables that were not measured stay in it."""
        kept = self.load(path) | {key: {"circumstances": how, "rows": rows} for key, (rows, how) in measured.items()}
        path.write_text(json.dumps({key: kept[key] for key in self.tables if key in kept}, indent=1) + "\n")

    def rendered(self) -> str:
        """Returns the README with its tables."""
        titles = {key: table.title for key, table in self.tables.items()}
        return self.filled(titles, lambda key, found: render(self.tables[key], found["rows"], found["circumstances"]))

    def update_readme(self) -> None:
        """Writes the tables into the README."""
        self.readme.write_text(self.rendered())


def put(text: str, key: str, content: str) -> str:
    """Returns `text` with `content` between its markers `<!-- key -->` and `<!-- /key -->`.

    Raises ValueError if a marker is missing or occurs twice.
    """
    begin, end = f"<!-- {key} -->", f"<!-- /{key} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page must have {begin} and {end} once each, where the table goes")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}{end}{rest.split(end)[1]}"
