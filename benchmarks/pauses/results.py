"""The table of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmarks.ledger import Trial
from benchmarks.report import Page, markdown

KEY, TITLE = "pauses", "False alarms of hang detection"
COLUMNS: dict[str, Literal["left", "right"]] = {
    "arm": "left", "minutes": "right", "pauses": "left", "steps": "right", "false alarms": "right", "target": "left",
}  # fmt: skip
COUNTS = ("failures", "restarts", "events")


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown: a row for each run."""
    rows = []
    for trial in trials:
        pauses = ", ".join(f"{count} x {kind}" for kind, count in trial["pauses"].items())
        found = "; ".join(f"{trial[count]} {count}" for count in COUNTS if trial[count]) or "0"
        met = "met" if found == "0" and trial["seconds"] is not None else "missed"
        ended = "" if trial["seconds"] is not None else " (not to its end)"
        rows.append([trial["arm"], f"{trial['minutes']:g}{ended}", pauses, f"{trial['steps']:,}", found, f"0: {met}"])
    return markdown(TITLE, COLUMNS, rows, circumstances)


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its table."""
        return self.filled({KEY: TITLE}, lambda key, found: render(found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the table into the README."""
        self.readme.write_text(self.rendered())


REPORT = Report(Path(__file__).parent)
