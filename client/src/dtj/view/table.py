"""Shows a run as a live table on a terminal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dtj import durations
from dtj.view.model import PodRow, Snapshot, activity, is_current, progress, reached, seconds_left
from dtj_contract import names

LINES = 8  # of events below the table
FEWEST_LINES = 3  # of events, with any number of pods
REFRESH_PER_SECOND = 4
STYLES = {
    names.RUNNING: "green",
    names.RESTARTING: "yellow",
    names.COMPLETE: "bold green",
    names.FAILED: "bold red",
    names.SUSPENDED: "magenta",
}


class TableView:
    """Redraws the table in place, with the last events below it.

    The output of workers is printed above the table.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: deque[str] = deque(maxlen=LINES)
        self._snapshot: Snapshot | None = None
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_SECOND, get_renderable=self._render)

    def print_line(self, text: str) -> None:
        self._lines.extend(text.splitlines())

    def print_log(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __enter__(self) -> TableView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        lines = tuple(self._lines)  # a copy: another thread adds lines
        events = [Text(line, style="yellow" if "--kill" in line else "dim", overflow="fold") for line in lines]
        return fitted(self._console, self._snapshot, events)


def fitted(console: Console, snapshot: Snapshot | None, events: Sequence[Text]) -> Group:
    """Returns head, pods and events in the rows that the terminal has.

    Healthy pods that do not fit are counted rather than cut off.
    """
    head = header(snapshot) if snapshot else []
    room = console.height - 1 - _height(console, *head)
    heights = [_height(console, event) for event in events]
    rows = len(snapshot.rows) + 1 if snapshot and snapshot.rows else 0
    for_events = max(FEWEST_LINES, room - rows)
    newest: list[Text] = []
    while len(newest) < len(events) and heights[-1 - len(newest)] <= for_events:
        for_events -= heights[-1 - len(newest)]
        newest.insert(0, events[-1 - len(newest)])
    taken = sum(heights[len(events) - len(newest) :])
    return Group(*head, *([pods(snapshot, room - taken)] if snapshot and snapshot.rows else []), *newest)


def header(snapshot: Snapshot) -> list[RenderableType]:
    """Returns the head line and the progress bar."""
    return [_head_line(snapshot), _bar(snapshot)]


def pods(snapshot: Snapshot, height: int) -> Table:
    """Returns a table with a row for each pod.

    If `height` is too small for all pods, those that are not Running come first, and the rest
    share one row.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("POD", "STATE", "AGENT", "RANKS (PID)", "RESTARTS"):
        # Each row is one line, so that the number of rows is the height.
        justify = "right" if heading == "RESTARTS" else "left"
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis", min_width=len("RESTARTS"))  # type: ignore[arg-type]
    shown = list(snapshot.rows)
    folded: list[PodRow] = []
    if len(shown) + 1 > height:
        by_need = sorted(shown, key=lambda row: row.state == names.RUNNING)
        most = max(0, height - 2)  # minus the heading and the shared row
        kept = {row.name for row in by_need[:most]}
        shown, folded = [row for row in shown if row.name in kept], [row for row in shown if row.name not in kept]
    for row in shown:
        ranks = "  ".join(f"{rank} ({pid})" for rank, pid in sorted(row.workers.items())) or "-"
        style = "green" if row.state == names.RUNNING else "yellow"
        table.add_row(row.name, Text(row.state, style=style), str(row.pid or "-"), ranks, str(row.restarts))
    if folded:
        states = ", ".join(f"{count} {state}" for state, count in Counter(row.state for row in folded).items())
        table.add_row(Text(f"{len(folded)} more", style="dim"), Text(states, style="dim"))
    return table


def _height(console: Console, *parts: RenderableType) -> int:
    return sum(len(console.render_lines(part, console.options, pad=False)) for part in parts)


def _head_line(snapshot: Snapshot) -> Text:
    status, known = snapshot.job.get("status", {}), progress(snapshot.job)
    phase = str(status.get("phase", names.PENDING))
    head = Text.assemble((snapshot.job["metadata"]["name"], "bold"), "  ", (phase, STYLES.get(phase, "")))
    if status.get("reason") and phase not in (names.RUNNING, names.COMPLETE):
        head.append(f" {status['reason']}", style="dim")
    if status.get("attempt"):
        head.append(f"  attempt {status['attempt']}")
    if not is_current(snapshot):
        return head.append(f"  {activity(snapshot)}".rstrip(), style="yellow")
    for name, text in (("loss", "{:.4g}"), ("samplesPerSecond", "{:.0f} samples/s")):
        if known.get(name) is not None:
            head.append(("  loss " if name == "loss" else "  ") + text.format(known[name]))
    left = seconds_left(snapshot.job, snapshot.now)
    if left is not None and phase == names.RUNNING:
        head.append(f"  {durations.format_estimate(left)} left")
    return head


def _bar(snapshot: Snapshot) -> RenderableType:
    known = progress(snapshot.job)
    bar = Table.grid(padding=(0, 1))
    total = known.get("totalSteps")
    saved = (snapshot.job.get("status", {}).get("checkpoint") or {}).get("step")
    checkpoint = f"checkpoint {saved}" if saved is not None else "no checkpoint yet"
    before = "" if is_current(snapshot) or "step" not in known else " before"
    style = "green" if is_current(snapshot) else "dim"
    bar.add_row(
        ProgressBar(
            total=total or 1,
            completed=known.get("step", 0) if total else 0,
            width=40,
            complete_style=style,
            finished_style="green",
        ),
        Text(reached(snapshot.job) + before, style="" if is_current(snapshot) else "dim"),
        Text(checkpoint, style="dim"),
    )
    return bar
