"""The table of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmarks.ledger import Trial
from benchmarks.report import Page, markdown
from benchmarks.tune.kills import LOCKED
from benchmarks.tune.sweep import PARALLEL, TRIALS

KEY, TITLE = "sweep", f"A sweep of {TRIALS} trials, {PARALLEL} at once"
CALM, KILLED, ASHA = "undisturbed", "killed 5 times", "ASHA"
ARMS = (CALM, KILLED, ASHA)
KILLS = 5
HALF, NEAR = 0.5, 0.01
COLUMNS: dict[str, Literal["left", "right"]] = {
    "arm": "left", "complete": "right", "stopped early": "right", "doubled": "right", "starts of jobs": "right",
    "most at once": "right", "steps": "right", "best": "right", "seconds": "right", "target": "left",
}  # fmt: skip


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown: a row for each sweep, and its kills below."""
    rows, notes = [], []
    for trial in sorted(trials, key=lambda trial: (trial["trial"], ARMS.index(trial["arm"]))):
        calm = next((t for t in trials if (t["arm"], t["trial"]) == (CALM, trial["trial"])), None)
        rows.append([
            trial["arm"], f"{trial['complete']} of {TRIALS}", str(trial["pruned"]), str(trial["doubled"]),
            str(trial["starts"]), str(trial["most"]), f"{trial['steps']:,}",
            f"{trial['best']:.6g} (trial {trial['best_trial']})", f"{trial['seconds']:.0f}", targets(trial, calm),
        ])  # fmt: skip
        if trial["arm"] == KILLED:
            notes.append(
                "Kills: " + "; ".join(f"{kind} at {at} results ({met})" for at, kind, met in trial["kills"]) + "."
            )
    for arm in ARMS:
        if all(trial["arm"] != arm for trial in trials):
            rows.append([arm, "not measured yet", *[""] * (len(COLUMNS) - 2)])
    return markdown(TITLE, COLUMNS, rows, *notes, circumstances)


def targets(trial: Trial, calm: Trial | None) -> str:
    """Returns whether a sweep meets its targets, which compare it with the undisturbed one of the same seed."""
    checks: dict[str, bool] = {}
    if trial["arm"] == KILLED:
        kills = sum(kind != LOCKED for _, kind, _ in trial["kills"])
        checks = {
            f"{KILLS} kills": kills == KILLS,
            f"{TRIALS} results": trial["complete"] == TRIALS,
            "none doubled": trial["doubled"] == 0,
        }
        if calm is not None:
            checks["parameters and results of the undisturbed"] = (
                trial["params"] == calm["params"] and trial["results"] == calm["results"]
            )
            checks["its best"] = (trial["best_trial"], trial["best"]) == (calm["best_trial"], calm["best"])
    elif trial["arm"] == ASHA:
        ended = trial["complete"] + trial["pruned"] + trial["failed"]
        checks = {"half stopped early": trial["pruned"] >= HALF * ended, f"{TRIALS} ended": ended == TRIALS}
        if calm is not None:
            checks["best within 1 %"] = trial["best"] <= calm["best"] * (1 + NEAR)
    return "; ".join(f"{text}: {'met' if is_met else 'missed'}" for text, is_met in checks.items())


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its table."""
        return self.filled({KEY: TITLE}, lambda key, found: render(found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the table into the README."""
        self.readme.write_text(self.rendered())


REPORT = Report(Path(__file__).parent)
