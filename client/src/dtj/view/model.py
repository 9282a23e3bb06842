"""A snapshot of a run, and the interface of the views that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from dtj import durations
from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.progress import OPTIMIZER


@dataclass(frozen=True, kw_only=True)
class PodRow:
    """A pod and the workers in it."""

    name: str
    state: str
    pid: int | None
    """Process id of the agent."""
    workers: Mapping[int, int]
    """Process id by global rank."""
    restarts: int
    """How often its workers were restarted: with the whole group, in place or with a new pod."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The run at one moment."""

    job: Object
    """The job with its status, as the API server would return it."""
    now: datetime
    rows: Sequence[PodRow]
    activity: str = ""
    """Text for what the group does instead of training; "" while it trains."""
    activity_seconds: float = 0.0
    """Duration of `activity` so far."""


class View(Protocol):
    """Shows a run while it is in progress. Use as a context manager."""

    def print_line(self, text: str) -> None:
        """Prints one line that stays: an event, a notice."""

    def print_log(self, text: str) -> None:
        """Prints one line of a worker's output."""

    def show(self, snapshot: Snapshot) -> None:
        """Shows the current state instead of the previous one."""

    def __enter__(self) -> View: ...

    def __exit__(self, *error: object) -> None: ...


def progress(job: Object) -> dict[str, Any]:
    """Returns status.progress, or {}."""
    found: dict[str, Any] = job.get("status", {}).get("progress") or {}
    return found


def steps(job: Object) -> str:
    """Returns `130/900`, `130`, or `-`."""
    step, total = progress(job).get("step"), progress(job).get("totalSteps")
    if step is None:
        return "-"
    return f"{step}/{total}" if total else str(step)


def reached(job: Object) -> str:
    """Returns `step 130/900`, or `130 optimizer steps` where the agent counts them."""
    if not is_counted(job):
        return f"step {steps(job)}"
    return f"{steps(job)} optimizer step" + ("" if progress(job)["step"] == 1 else "s")


def is_counted(job: Object) -> bool:
    """Returns whether the step is a count of optimizer steps, because the script reports none."""
    return bool(progress(job).get("stepSource") == OPTIMIZER)


def restarts(job: Object) -> int:
    """Returns how often the group was restarted, in place or with a new pod."""
    counts = job.get("status", {}).get("restarts") or {}
    return int(counts.get("inPlace", 0)) + int(counts.get("pod", 0))


def is_current(snapshot: Snapshot) -> bool:
    """Returns whether loss and rates are current, rather than those of a previous attempt."""
    return not snapshot.activity and snapshot.job.get("status", {}).get("phase") != names.RESTARTING


def activity(snapshot: Snapshot) -> str:
    """Returns text such as `stopping the workers (12 s)`, or ""."""
    return f"{snapshot.activity} ({durations.format_estimate(snapshot.activity_seconds)})" if snapshot.activity else ""


def seconds_left(job: Object, now: datetime) -> float | None:
    """Returns the seconds to totalSteps at the current speed, or None if unknown."""
    eta = progress(job).get("eta")
    return max(0.0, (datetime.fromisoformat(eta) - now).total_seconds()) if eta else None
