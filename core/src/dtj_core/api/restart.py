"""`spec.restart`: what failures cost, and when they end the job."""

from __future__ import annotations

from pydantic import Field

from dtj_core.api.avoid_nodes import AvoidNodes
from dtj_core.api.base_model import INT32_MAX, Model


class RestartSettings(Model):
    """Budget for failures of the job's own.

    Preempted, evicted and deleted pods never count.
    """

    max_restarts: int = Field(default=10, ge=0, le=1000)
    """Number of restarts allowed within windowSeconds. The next failure fails the job. A new
    checkpoint resets the count."""
    window_seconds: int = Field(default=3600, ge=1, le=INT32_MAX)
    """Length of the sliding window in seconds."""
    avoid_nodes: AvoidNodes = AvoidNodes()
    """Nodes on which the training fails again and again: their pods are recreated elsewhere."""
    stop_grace_seconds: float | None = Field(default=None, ge=0, le=600)
    """Seconds from SIGTERM to SIGKILL for the workers of a failed group. Default: 0.5. A longer
    time lets their signal handlers save, but every restart may then take that long, because a rank
    that waits in a collective runs no handler."""
