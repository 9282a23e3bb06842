"""The group's part of the job's spec. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dtj_agent.group.hang_watch import HangSettings
from dtj_contract import names


class GroupSpec(NamedTuple):
    """Times are in seconds."""

    uid: str
    replicas: int
    processes: int
    attempt_floor: int = 1
    max_restarts: int = 10
    window: float = 3600.0
    """`max_restarts` counts the restarts within this time."""
    rendezvous_timeout: float = 0.0
    """0: none.

    A cluster may lack room for a pod for any length of time; the job's own deadline bounds the
    wait.
    """
    job: str = "pod"
    """Pods are named <job>-<ordinal>."""
    stop_grace: float = names.STOP_GRACE_SECONDS
    """SIGTERM to SIGKILL of the workers of a failed group."""
    hang: HangSettings = HangSettings()
