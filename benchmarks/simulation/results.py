"""The table of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger import Trial
from benchmarks.report import Page, markdown
from benchmarks.simulation import efficiency
from benchmarks.simulation.points import POINTS

KEY, TITLE = "simulation", "A real step beside the modelled one"
MEAN, WORST = 0.07, 0.15
"""Targets of the error."""
NOTE = "Both columns are the fastest of all rounds; slowest: of the measured rounds."


def errors(trials: Sequence[Trial]) -> dict[str, tuple[float, float, float, float]]:
    """Returns (measured, slowest, modelled seconds, error as a share) by point, in the order of the points."""
    out = {}
    for point in POINTS:
        found = [trial for trial in trials if trial["arm"] == point.name]
        if found:
            real, model = (min(trial[key] for trial in found) for key in ("measured", "modelled"))
            out[point.name] = real, max(trial["measured"] for trial in found), model, model / real - 1
    return out


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown: a row for each point, and the mean and the worst error below."""
    found, rows, notes = errors(trials), [], []
    for name, (real, slowest, model, error) in found.items():
        count = sum(trial["arm"] == name for trial in trials)
        seconds = (f"{1000 * value:.1f}" for value in (real, slowest, model))
        rows.append([name, str(count), *seconds, f"{100 * error:+.1f} %"])
    sizes = [abs(error) for _, _, _, error in found.values()]
    if sizes:
        verdicts = [
            f"{name} error {100 * value:.1f} % (≤ {100 * target:g} %: {'met' if value <= target else 'missed'})"
            for name, value, target in (("mean", statistics.mean(sizes), MEAN), ("worst", max(sizes), WORST))
        ]
        notes.append(f"{len(sizes)} points: {', '.join(verdicts)}.")
    heads = ("rounds", "measured ms", "slowest ms", "modelled ms", "error")
    columns = {"point": "left", **dict.fromkeys(heads, "right")}
    return markdown(TITLE, columns, rows, *notes, f"{NOTE} {circumstances}")


TABLES = {KEY: render, efficiency.KEY: efficiency.render}


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its tables."""
        titles = {KEY: TITLE, efficiency.KEY: efficiency.TITLE}
        return self.filled(titles, lambda key, found: TABLES[key](found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the tables into the README."""
        self.readme.write_text(self.rendered())


REPORT = Report(Path(__file__).parent)
