"""The tables of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger import Trial
from benchmarks.recovery.trials import LIMIT_SECONDS
from benchmarks.report import Page, loads, markdown
from benchmarks.warm_restart.trial import FRAMEWORKS, PHASES

KEY, TITLE = "warm", "SIGKILL of one rank to the first step resumed by all ranks"
TARGETS = {"plain": 0.5, "gpt": 0.5, "fsdp2": 0.5, "accelerate": 0.5, "lightning": 1.3, "transformers": 1.3}
"""Target of the median, without the loading of the script's own checkpoint."""
NAMES = {
    "plain": "DistributedDataParallel", "gpt": "a GPT as nanoGPT trains it", "fsdp2": "FSDP2, distributed checkpoints",
    "accelerate": "Accelerate", "lightning": "Lightning", "transformers": "transformers' `Trainer`",
    "deepspeed": "DeepSpeed, ZeRO 1",
}  # fmt: skip
NOTE = "Judged is the median without `load`. Phases are medians; each ends with the last of the 4 ranks."


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown: a row for each framework."""
    rows = []
    for arm in FRAMEWORKS:
        found = [trial for trial in trials if trial["arm"] == arm]
        if not found:
            continue
        well = [trial for trial in found if trial["seconds"] is not None]
        whole = [LIMIT_SECONDS if trial["seconds"] is None else trial["seconds"] for trial in found]
        own = [LIMIT_SECONDS if trial["seconds"] is None else without_load(trial) for trial in found]
        spans = [_median([trial["phases"][phase] for trial in well]) for phase in PHASES]
        cells = [NAMES[arm], f"{len(well)}/{len(found)}", _median(whole), f"{max(whole):.2f}", _median(own)]
        rows.append([*cells, *spans, _verdict(arm, own)])
    heads = ("framework", "resumed", "median s", "worst s", "median without load s", *PHASES, "target")
    columns = dict.fromkeys(heads, "right") | {"framework": "left", "target": "left"}
    return markdown(TITLE, columns, rows, f"{NOTE} {loads(trials)} {circumstances}")  # type: ignore[arg-type]


def without_load(trial: Trial) -> float:
    """Returns the seconds without those in which the script loaded its own checkpoint."""
    return float(trial["seconds"] - trial["phases"]["load"])


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else ""


def _verdict(arm: str, own: Sequence[float]) -> str:
    if arm not in TARGETS:
        return ""
    return f"≤ {TARGETS[arm]:g}: {'met' if statistics.median(own) <= TARGETS[arm] else 'missed'}"


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its table."""
        return self.filled({KEY: TITLE}, lambda key, found: render(found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the table into the README."""
        self.readme.write_text(self.rendered())


REPORT = Report(Path(__file__).parent)
