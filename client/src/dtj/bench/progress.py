"""The progress of a bench: one bar on a terminal, a line for each trial elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from dtj.bench.ledger import OK, Record
from dtj.bench.plan import Trial
from dtj.quantities import step_time


class TrialProgress:
    """Shows which trial runs, and what the last one has measured; on standard error, so that a pipe has the table."""

    def __init__(self, total: int, done: int, stream: TextIO | None = None) -> None:
        """Begins at `done` of `total` trials."""
        self._stream = stream or sys.stderr
        self._total, self._done = total, done
        self._bar: Progress | None = None
        self._task = TaskID(0)
        console = Console(file=self._stream)
        if console.is_terminal:
            columns = (
                BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(compact=True), TextColumn("{task.description}")
            )  # fmt: skip
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=total, completed=done)

    def begins(self, trial: Trial) -> None:
        """Shows a trial that begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{trial.cell.phrase()}, trial {trial.repeat + 1}")

    def ended(self, trial: Trial, record: Record) -> None:
        """Counts a trial."""
        self._done += 1
        text = (
            step_time(record["step_seconds"]) if record["outcome"] == OK else f"{record['outcome']}: {record['reason']}"
        )
        line = f"{trial.cell.phrase()}, trial {trial.repeat + 1}: {text}"
        if self._bar is None:
            print(f"[{self._done}/{self._total}] {line}", file=self._stream, flush=True)
            return
        self._bar.advance(self._task)
        if record["outcome"] != OK:
            self._bar.console.print(line, style="yellow", markup=False, highlight=False)

    def __enter__(self) -> TrialProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
