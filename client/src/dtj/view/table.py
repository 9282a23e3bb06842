"""The live table on a terminal."""

from __future__ import annotations

from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dtj import durations
from dtj.view.model import Sight, progress, seconds_left, steps
from dtj_agent import names

LINES = 8  # of events below the table; all of them are in the run's folder
REFRESH_PER_SECOND = 4
STYLES = {
    names.RUNNING: "green",
    names.RESTARTING: "yellow",
    names.COMPLETE: "bold green",
    names.FAILED: "bold red",
    names.SUSPENDED: "magenta",
}


class TableView:
    """Redraws in place; events scroll in the last lines. What workers write goes above it."""

    def __init__(self, console: Console) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._sight: Sight | None = None
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_SECOND, get_renderable=self._render)

    def say(self, text: str) -> None:
        self._lines.extend(text.splitlines())

    def log(self, text: str) -> None:
        self._live.console.print(Text(text, style="dim"))

    def show(self, sight: Sight) -> None:
        self._sight = sight

    def __enter__(self) -> TableView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        events = [Text(line, style="yellow" if line.startswith("--kill") else "dim", overflow="fold") for line in self._lines]
        return Group(*render(self._sight), *events) if self._sight else Group(*events)


def render(sight: Sight) -> list[RenderableType]:
    """Head line, progress bar, a row for each pod."""
    return [_head(sight), _bar(sight), _pods(sight)]


def _head(sight: Sight) -> Text:
    status, known = sight.job.get("status", {}), progress(sight.job)
    phase = str(status.get("phase", "Pending"))
    head = Text.assemble((sight.job["metadata"]["name"], "bold"), "  ", (phase, STYLES.get(phase, "")))
    if status.get("reason") and phase not in (names.RUNNING, names.COMPLETE):
        head.append(f" {status['reason']}", style="dim")
    if status.get("attempt"):
        head.append(f"  attempt {status['attempt']}")
    for name, text in (("loss", "{:.4g}"), ("samplesPerSecond", "{:.0f} samples/s")):
        if known.get(name) is not None:
            head.append(("  loss " if name == "loss" else "  ") + text.format(known[name]))
    left = seconds_left(sight.job, sight.now)
    if left is not None and phase == names.RUNNING:
        head.append(f"  {durations.rough(left)} left")
    return head


def _bar(sight: Sight) -> RenderableType:
    known = progress(sight.job)
    bar = Table.grid(padding=(0, 1))
    total = known.get("totalSteps")
    saved = (sight.job.get("status", {}).get("checkpoint") or {}).get("step")
    checkpoint = f"checkpoint {saved}" if saved is not None else "no checkpoint yet"
    bar.add_row(
        ProgressBar(total=total or 1, completed=known.get("step", 0) if total else 0, width=40),
        f"step {steps(sight.job)}",
        Text(checkpoint, style="dim"),
    )
    return bar


def _pods(sight: Sight) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("POD", "STATE", "AGENT", "RANKS (PID)", "RESTARTS"):
        table.add_column(heading, justify="right" if heading == "RESTARTS" else "left")
    for row in sight.rows:
        ranks = "  ".join(f"{rank} ({pid})" for rank, pid in sorted(row.workers.items())) or "-"
        style = "green" if row.state == "Running" else "yellow"
        table.add_row(row.name, Text(row.state, style=style), str(row.pid or "-"), ranks, str(row.restarts))
    return table
