"""The tables of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kind import plot, tables
from benchmarks.recovery.results import percentile
from benchmarks.report import Page
from dtj_contract.names import RECOVERY_PHASES


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One job that is disturbed, by the arguments of tests.chaos.on_kind; targets of the 95th percentile in seconds."""

    title: str
    arguments: tuple[str, ...]
    trials: int
    targets: Mapping[str, float] = field(default_factory=dict)


DELETED = ("pod 0 deleted", "another pod deleted")
SHAPES = {
    "pod": Shape(
        title="A pod of three is deleted: kubectl delete to the next step",
        arguments=("--only", "pod"),
        trials=10,
        targets=dict.fromkeys(DELETED, 5.0),
    ),
    "spare": Shape(
        title="The same with one spare",
        arguments=("--only", "pod", "--spares", "1"),
        trials=10,
        targets=dict.fromkeys(DELETED, 1.5),
    ),
    "node": Shape(
        title="A node of an elastic job (2 to 3 pods) is stopped, and started again",
        arguments=("--only", "node", "--elastic", "2,3"),
        trials=15,
        targets={
            "node stopped -> training on the survivors": 15.0,
            "node Ready -> the whole group trains": 10.0,
        },
    ),
}


def render(shape: Shape, found: Mapping[str, Any]) -> str:
    """Returns the table of one shape as Markdown: a row for each measurement and each phase."""
    out = [
        f"**{shape.title}**", "",
        "| what | trials | median s | p95 s | worst s | target |",
        "|---|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for name, seconds in found["seconds"].items():
        target = shape.targets.get(name)
        met = "" if target is None else f"p95 ≤ {target:g}: {_met(percentile(seconds, 0.95) <= target)}"
        out.append(_row(name, seconds, met))
    for phase in RECOVERY_PHASES:
        spent = [one[phase] for one in found["phases"] if one.get(phase)]
        if spent:
            out.append(_row(f"phase `{phase}`", spent, ""))
    return "\n".join([*out, "", f"{found['verdict']} {found['circumstances']}", ""])


def _row(name: str, seconds: list[float], target: str) -> str:
    figures = (statistics.median(seconds), percentile(seconds, 0.95), max(seconds))
    return f"| {name} | {len(seconds)} | " + " | ".join(f"{figure:.2f}" for figure in figures) + f" | {target} |"


def _met(met: bool) -> str:
    return "met" if met else "missed"


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with a table for each shape and each comparison."""
        titles = {key: shape.title for key, shape in SHAPES.items()} | tables.TITLES

        def table(key: str, found: Mapping[str, Any]) -> str:
            return tables.render(key, found) if key in tables.TITLES else render(SHAPES[key], found)

        return self.filled(titles, table)

    def update_readme(self) -> None:
        """Writes the tables into the README, and the plot into docs/figures."""
        self.readme.write_text(self.rendered())
        results = self.load()
        if plot.bars(results):
            plot.draw(results)


REPORT = Report(Path(__file__).parent)
