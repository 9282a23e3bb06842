"""The tables of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engines import scaling
from benchmarks.engines.arms import ARMS, OURS, Arm
from benchmarks.engines.trial import HANG_SECONDS
from benchmarks.ledger import Trial
from benchmarks.report import Page, loads, markdown

KEY, TITLE = "kill", "SIGKILL to the first new step of the group"
NOTE = (
    "`recovered` has the trials of each arm. A hang and an end count as 120 s in median and worst."
    " `dtj run is` compares medians; it is ahead if its median is lower and it recovers in each trial."
)


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown: a row for each arm that was measured."""
    rows = []
    for arm in ARMS:
        found = of(arm, trials)
        if not found:
            continue
        well = [trial for trial in found if trial["seconds"] is not None]
        values = [figure(trial) for trial in found]
        hung, ended = (sum(trial["end"] == end for trial in found) for end in ("hung", "ended"))
        figures = [f"{len(well)}/{len(found)}", f"{hung}", f"{ended}", _cell(statistics.median(values)),
                   _cell(max(values)), _whole(well, "lost"), _whole(well, "ranks")]  # fmt: skip
        rows.append([f"`{arm.engine}`", arm.killed, arm.launcher, *figures, verdict(arm, trials)])
    heads = ("engine", "killed", "launcher", "recovered", "hung", "ended", "median s", "worst s", "steps lost",
             "ranks after", "dtj run is")  # fmt: skip
    columns = dict.fromkeys(heads, "right") | dict.fromkeys(("engine", "killed", "launcher", "dtj run is"), "left")
    return markdown(TITLE, columns, rows, f"{NOTE} {loads(trials)} {_since(circumstances)}")  # type: ignore[arg-type]


def of(arm: Arm, trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials of an arm."""
    return [trial for trial in trials if trial["arm"] == arm.name]


def figure(trial: Trial) -> float:
    """Returns the seconds of a trial; the limit if there was no step."""
    return HANG_SECONDS if trial["seconds"] is None else float(trial["seconds"])


def verdict(arm: Arm, trials: Sequence[Trial]) -> str:
    """Returns how our arm of the same kill compares with this one; empty for our own."""
    own = [one for one in ARMS if (one.engine, one.node, one.launcher) == (arm.engine, arm.node, OURS)]
    mine, others = of(own[0], trials), of(arm, trials)
    if arm.launcher == OURS:
        return ""
    if not mine:
        return "not measured yet"
    ratio = statistics.median(map(figure, others)) / statistics.median(map(figure, mine))
    recovers = all(trial["seconds"] is not None for trial in mine)
    at_least = "≥ " if statistics.median(map(figure, others)) >= HANG_SECONDS else ""
    return f"**{'ahead' if ratio > 1 and recovers else 'not ahead'}**, {at_least}{ratio:.2f}x"


def _whole(trials: Sequence[Trial], key: str) -> str:
    return f"{statistics.median(trial[key] for trial in trials):g}" if trials else ""


def _cell(value: float) -> str:
    return f"≥ {HANG_SECONDS:g}" if value >= HANG_SECONDS else f"{value:.2f}"


def _since(circumstances: str) -> str:
    # The number that was asked for is not what an interrupted run has.
    return re.sub(r"\d+ trials, ", "", circumstances)


TABLES = {KEY: render, scaling.KEY: scaling.render}


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its tables."""
        titles = {KEY: TITLE, scaling.KEY: scaling.TITLE}
        return self.filled(titles, lambda key, found: TABLES[key](found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the tables into the README."""
        self.readme.write_text(self.rendered())


REPORT = Report(Path(__file__).parent)
