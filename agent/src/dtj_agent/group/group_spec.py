"""The group's part of the job's spec. Pure."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from dtj_agent.group.hang_watch import HangSettings
from dtj_agent.group.restart_rules import RestartRule
from dtj_contract import names
from dtj_contract.operator_message import GroupSize, RestartBudget


class ElasticLimits(NamedTuple):
    """Limits within which a group may train with fewer or more pods than it began with."""

    least: int
    most: int = 0
    """0: no limit."""
    wait: float = 10.0
    """Seconds that the group waits for a lost pod before it continues without it."""


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
    max_without_progress: int = names.MAX_WITHOUT_PROGRESS
    """Counted restarts in a row without progress, after which the next one fails the job."""
    rules: Tuple[RestartRule, ...] = ()
    """The user's decisions about certain failures, in order of precedence."""
    generation: int = 0
    """Generation of the job that the budget is from."""
    has_other_nodes: bool = True
    """An operator can replace pods on other nodes; nobody can under `dtj run`."""

    spares: int = 0
    """Pods beyond the replicas."""
    elastic: Optional[ElasticLimits] = None
    """None: every attempt has `replicas` pods."""
    has_volume: bool = True
    """Whether there is a volume, whose lease fences a coordinator that was replaced."""
    grace: float = 25.0
    """SIGTERM to SIGKILL of the workers of a group that is resized, which lets a trainer save."""
    success_policy: str = names.SUCCESS_ALL
    """The ranks whose success is that of the job (success_policy.py)."""
    lists_members: bool = False
    """Whether each member of an attempt learns the addresses and ports of all."""

    @property
    def size(self) -> GroupSize:
        """The size that the pod was created with."""
        return GroupSize(self.generation, self.replicas)

    @property
    def budget(self) -> RestartBudget:
        """The budget that the pod was created with."""
        return RestartBudget(self.generation, self.max_restarts, self.window, self.max_without_progress)
