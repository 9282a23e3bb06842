"""Results of trials in a JSON file, which has each trial as soon as it ends: an interrupted run continues there."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.report import circumstances

Trial = dict[str, Any]
"""A trial has at least `arm` and `trial`, its number in the arm."""


class Ledger:
    """Trials by experiment: `{EXPERIMENT: {"circumstances": TEXT, "trials": [TRIAL, ...]}}`.

    Without a file the trials are kept only in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def trials(self, what: str) -> list[Trial]:
        """Returns the trials of an experiment so far."""
        found: list[Trial] = self._results.get(what, {}).get("trials", [])
        return found

    def circumstances(self, what: str) -> str:
        """Returns the description of the first trial's day and machine."""
        return str(self._results.get(what, {}).get("circumstances", ""))

    def has(self, what: str, arm: str, number: int) -> bool:
        """Returns whether a trial is done."""
        return any((trial["arm"], trial["trial"]) == (arm, number) for trial in self.trials(what))

    def begin(self, what: str, trials: int, extra: str) -> None:
        """Describes the machine, unless an earlier trial of the experiment did."""
        self._results.setdefault(what, {"circumstances": circumstances(trials, extra), "trials": []})

    def add(self, what: str, trial: Trial) -> None:
        """Keeps a trial. A run that is killed meanwhile leaves the file as it was."""
        self._results[what]["trials"].append(trial)
        self._write()

    def forget(self, what: str, arms: Collection[str]) -> None:
        """Drops the trials of these arms, which are to be measured again."""
        kept = [trial for trial in self.trials(what) if trial["arm"] not in arms]
        if kept:
            self._results[what]["trials"] = kept
        else:
            self._results.pop(what, None)
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        aside = self._path.with_name(self._path.name + ".part")
        aside.write_text(json.dumps(self._results, indent=1) + "\n")
        os.replace(aside, self._path)
