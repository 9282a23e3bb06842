"""Lines: for a pipe, a log file, CI, or --plain."""

from __future__ import annotations

from typing import TextIO

from dtj import durations
from dtj.view.model import Sight, activity, is_current, progress, seconds_left, steps
from dtj_contract import names

PROGRESS_SECONDS = 5.0  # between two lines that say nothing but the progress
STILL_SECONDS = 15.0  # between two lines where no step is done: the run is waited for, not hung


class PlainView:
    """A line for each change of phase or attempt, for each event, and for the progress now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._state: tuple[object, ...] = ()
        self._spoke = float("-inf")
        self._steps = "-"

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def log(self, text: str) -> None:
        self.say(text)

    def show(self, sight: Sight) -> None:
        status = sight.job.get("status", {})
        now, state = sight.now.timestamp(), (status.get("phase"), status.get("attempt"))
        due = PROGRESS_SECONDS if steps(sight.job) != self._steps else STILL_SECONDS
        if state == self._state and now - self._spoke < due:
            return
        self._state, self._spoke, self._steps = state, now, steps(sight.job)
        self.say(f"{sight.now.astimezone():%H:%M:%S} {line(sight)}")

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.flush()


def line(sight: Sight) -> str:
    """`digits Running attempt 2 step 130/900 loss 0.31 5120 samples/s 42 s left`, or what it does instead of training."""
    job, known = sight.job, progress(sight.job)
    status = job.get("status", {})
    parts = [job["metadata"]["name"], str(status.get("phase", "Pending"))]
    if status.get("attempt"):
        parts.append(f"attempt {status['attempt']}")
    if known.get("step") is not None:
        parts.append(f"step {steps(job)}")
    if not is_current(sight):
        return " ".join([*parts, activity(sight)]).rstrip()
    if known.get("loss") is not None:
        parts.append(f"loss {known['loss']:.4g}")
    if known.get("samplesPerSecond"):
        parts.append(f"{known['samplesPerSecond']:.0f} samples/s")
    left = seconds_left(job, sight.now)
    if left is not None and status.get("phase") == names.RUNNING:
        parts.append(f"{durations.rough(left)} left")
    return " ".join(parts)
