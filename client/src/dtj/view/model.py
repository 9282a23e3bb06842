"""What there is to see, and who shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from dtj import durations
from dtj_contract import names
from dtj_core.plan.model import Object


@dataclass(frozen=True, kw_only=True)
class PodRow:
    """One pod and the workers in it."""

    name: str
    state: str
    pid: int | None
    """Of the agent."""
    workers: Mapping[int, int]
    """Process id by global rank."""
    restarts: int
    """How often its workers were started again: with the whole group, in place or with a new pod."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The run at one moment."""

    job: Object
    """With its status, as the API server would show it."""
    now: datetime
    rows: Sequence[PodRow]
    activity: str = ""
    """What the group does while it does not train; "" while it does."""
    activity_seconds: float = 0.0
    """For how long it has done so."""


class View(Protocol):
    """Shows a run while it goes on. Use as a context manager."""

    def print_line(self, text: str) -> None:
        """One line that stays: an event, a notice."""

    def print_log(self, text: str) -> None:
        """One line that a worker wrote."""

    def show(self, snapshot: Snapshot) -> None:
        """The present state, in place of the one before."""

    def __enter__(self) -> View: ...

    def __exit__(self, *error: object) -> None: ...


def progress(job: Object) -> dict[str, Any]:
    """status.progress, or {}."""
    found: dict[str, Any] = job.get("status", {}).get("progress") or {}
    return found


def steps(job: Object) -> str:
    """`130/900`, `130`, or `-`."""
    step, total = progress(job).get("step"), progress(job).get("totalSteps")
    if step is None:
        return "-"
    return f"{step}/{total}" if total else str(step)


def restarts(job: Object) -> int:
    """How often the group was started again, in place or with a new pod."""
    counts = job.get("status", {}).get("restarts") or {}
    return int(counts.get("inPlace", 0)) + int(counts.get("pod", 0))


def is_current(snapshot: Snapshot) -> bool:
    """Whether loss and rates are of now: those of an attempt that is over are history."""
    return not snapshot.activity and snapshot.job.get("status", {}).get("phase") != names.RESTARTING


def activity(snapshot: Snapshot) -> str:
    """`stopping the workers (12 s)`, or ""."""
    return f"{snapshot.activity} ({durations.format_estimate(snapshot.activity_seconds)})" if snapshot.activity else ""


def seconds_left(job: Object, now: datetime) -> float | None:
    """Until totalSteps at the present speed; None if that is not known."""
    eta = progress(job).get("eta")
    return max(0.0, (datetime.fromisoformat(eta) - now).total_seconds()) if eta else None
