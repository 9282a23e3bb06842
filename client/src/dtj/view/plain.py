"""Shows a run as lines: for a pipe, a log file, CI, or --plain."""

from __future__ import annotations

from typing import TextIO

from dtj import durations
from dtj.view.model import Snapshot, activity, is_current, progress, reached, seconds_left, steps
from dtj_contract import names

PROGRESS_SECONDS = 5.0  # between two lines of mere progress
# Between two lines while no step is done: they show that the run waits, and does not hang.
STILL_SECONDS = 15.0


class PlainView:
    """Prints a line for each event and each change of phase or attempt.

    In between it prints the progress from time to time.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._state: tuple[object, ...] = ()
        self._printed = float("-inf")
        self._steps = "-"

    def print_line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def print_log(self, text: str) -> None:
        self.print_line(text)

    def show(self, snapshot: Snapshot) -> None:
        status = snapshot.job.get("status", {})
        now, state = snapshot.now.timestamp(), (status.get("phase"), status.get("attempt"))
        due = PROGRESS_SECONDS if steps(snapshot.job) != self._steps else STILL_SECONDS
        if state == self._state and now - self._printed < due:
            return
        self._state, self._printed, self._steps = state, now, steps(snapshot.job)
        self.print_line(f"{snapshot.now.astimezone():%H:%M:%S} {line(snapshot)}")

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.flush()


def line(snapshot: Snapshot) -> str:
    """Returns the state in one line.

    For example `digits Running attempt 2 step 130/900 loss 0.31 5120 samples/s 42 s left`, or the
    group's activity instead of the rates.
    """
    job, known = snapshot.job, progress(snapshot.job)
    status = job.get("status", {})
    parts = [job["metadata"]["name"], str(status.get("phase", "Pending"))]
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    if known.get("step") is not None:
        parts.append(reached(job))
    if not is_current(snapshot):
        return " ".join([*parts, activity(snapshot)]).rstrip()
    if known.get("loss") is not None:
        parts.append(f"loss {known['loss']:.4g}")
    if known.get("samplesPerSecond"):
        parts.append(f"{known['samplesPerSecond']:.0f} samples/s")
    left = seconds_left(job, snapshot.now)
    if left is not None and status.get("phase") == names.RUNNING:
        parts.append(f"{durations.format_estimate(left)} left")
    return " ".join(parts)
