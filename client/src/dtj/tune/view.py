"""Shows a sweep: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dtj import durations
from dtj.tune import render
from dtj.tune.engine import State
from dtj.tune.planner import Job, JobState, TrialState
from dtj.tune.study import Details

LINES = 6  # of events below the table
STYLES = {"complete": "green", "pruned": "yellow", "failed": "bold red", "running": "cyan", "waiting": "dim"}


class PlainSweepView:
    """Prints the events."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream

    def show(self, state: State) -> None:
        pass

    def event(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)

    def __enter__(self) -> PlainSweepView:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TableSweepView:
    """Redraws a table of the trials in place, with the last events below it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._events: deque[str] = deque(maxlen=LINES)
        self._state: State | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def show(self, state: State) -> None:
        self._state = state

    def event(self, text: str) -> None:
        self._events.append(f"{time.strftime('%H:%M:%S')} {text}")

    def __enter__(self) -> TableSweepView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        events = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in tuple(self._events)]
        if self._state is None:
            return Group(*events)
        rows = max(3, self._console.height - len(events) - 4)
        return Group(Text(headline(self._state), style="bold"), table(self._state, rows), *events)


def headline(state: State) -> str:
    """Returns `search: 12 of 40 trials finished (5 pruned, 1 failed), 4 active; best loss 0.031, trial 7; 42 s`."""
    pruned, failed = state.count(TrialState.PRUNED), state.count(TrialState.FAILED)
    finished = pruned + failed + state.count(TrialState.COMPLETE)
    parts = [f"{pruned} pruned"] * bool(pruned) + [f"{failed} failed"] * bool(failed)
    more = f" ({', '.join(parts)})" if parts else ""
    active = sum(job.state is JobState.ACTIVE for job in state.jobs.values())
    best = state.best
    metric = state.sweep.spec.objective.metric
    found = "no result yet" if best is None else f"best {metric} {best.trial.value:.6g}, trial {best.trial.number}"
    total = state.limits.trials
    took = durations.format_estimate(state.seconds)
    return f"{state.sweep.name}: {finished} of {total} trials finished{more}, {active} active; {found}; {took}"


def table(state: State, height: int) -> Table:
    """Returns the active trials, the best one and the newest finished ones, in as many rows as there is room for."""
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    metric = state.sweep.spec.objective.metric
    for heading, justify in (("TRIAL", "right"), ("STATE", "left"), ("STEP", "right"), (metric.upper(), "right")):
        shown.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    shown.add_column("PARAMETERS", no_wrap=True, overflow="ellipsis")
    best = state.best
    order = sorted(
        state.trials,
        key=lambda one: (one is not best, one.trial.state is not TrialState.RUNNING, -one.trial.number),
    )
    for one in sorted(order[:height], key=lambda one: one.trial.number):
        shown.add_row(*_row(one, state.jobs.get(one.trial.number), is_best=one is best))
    return shown


def _row(one: Details, job: Job | None, *, is_best: bool) -> tuple[Any, ...]:
    trial = one.trial
    name = trial.state.value
    if trial.state is TrialState.RUNNING:
        states = {JobState.ACTIVE: "running", JobState.PAUSED: "suspended"}
        waiting = "waiting" if job is None else states.get(job.state, "waiting")
        name = "stopping" if trial.is_pruning or trial.failure else waiting
    step = trial.last_step if job is None or job.step is None else job.step
    value = trial.value if trial.value is not None else (job.value if job else None)
    if value is None and one.values:
        value = one.values[max(one.values)]
    return (
        f"{trial.number}", Text(f"{name} *" if is_best else name, style=STYLES.get(name, "yellow")),
        "-" if step is None else str(step), "-" if value is None else f"{value:.5g}",
        one.message if trial.state is TrialState.FAILED else parameters(one.params),
    )  # fmt: skip


def parameters(params: dict[str, render.Value]) -> str:
    """Returns `lr=0.012 width=64`."""
    return " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={render.text(value)}"
                    for name, value in params.items())  # fmt: skip
