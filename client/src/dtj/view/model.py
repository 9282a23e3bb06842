"""What there is to see, and who shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from dtj_operator.plan.model import Object


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
    """Of its container, or of the whole pod."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The run at one moment."""

    job: Object
    """With its status, as the API server would show it."""
    now: datetime
    rows: Sequence[PodRow]


class View(Protocol):
    """Shows a run while it goes on. Use as a context manager."""

    def say(self, text: str) -> None:
        """One line that stays: an event, a notice."""

    def log(self, text: str) -> None:
        """One line that a worker wrote."""

    def show(self, sight: Sight) -> None:
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


def seconds_left(job: Object, now: datetime) -> float | None:
    """Until totalSteps at the present speed; None if that is not known."""
    eta = progress(job).get("eta")
    return max(0.0, (datetime.fromisoformat(eta) - now).total_seconds()) if eta else None
