"""`spec.hangDetection`: what a group that makes no progress is, and what follows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dtj_core.api.base_model import Model


class HangDetection(Model):
    """Detection of a group that has made steps and makes no more, or of a rank that is stopped by a
    signal.
    """

    policy: Literal["Restart", "Report", "Off"] = "Restart"
    """Restart: the group restarts, which counts against restart.maxRestarts. Report: an event names
    the rank, and the group continues to wait. Off: nothing is detected, for a debugger that stops
    processes."""
    min_seconds: int | None = Field(default=None, ge=5, le=86400)
    """Shortest time without a step that is a hang, outside of announced pauses. A hang also lasts
    at least three times as long as a usual step, and twice as long as the longest pause so far.
    Default: 120 for a script that announces every pause, as Trainer does; else 300, and 1200 in the
    first ten steps."""
