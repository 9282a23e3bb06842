"""The containers that ran out of memory with their agents, as the operator reports them. Pure.

With cgroup v2 the kernel kills the agent with its workers, so the group sees only an agent that
crashed. The kubelet knows why, and the operator hands that over. Where a rule of the user decides
about OOMKilled, a crash is not accounted for before the operator had time to report.
"""

from __future__ import annotations

from typing import List, Tuple

from dtj_agent.group.messages import Now
from dtj_agent.group.restart_policy import RestartPolicy
from dtj_agent.group.restart_rules import RestartRule
from dtj_contract import names
from dtj_contract.operator_message import LostPod

KEEP_KILLS = 64


class ContainerKills:
    """Waits for the cause of a crash, and takes each cause once."""

    def __init__(self, rules: Tuple[RestartRule, ...], policy: RestartPolicy) -> None:
        self._matters = any(names.Reason.OOM_KILLED in (rule.reasons or ()) for rule in rules)
        self._policy = policy
        self._until = 0.0
        self._taken: List[LostPod] = []

    def agent_crashed(self, now: Now) -> None:
        """Holds the next attempt back until the cause is known, or nobody has reported one in time."""
        if self._matters:
            self._until = now.mono + names.CRASH_CAUSE_SECONDS
            self._policy.not_before = max(self._policy.not_before, self._until)

    def awaits_cause(self, now: Now) -> bool:
        """Returns whether the charge for a crash must wait for its cause."""
        return now.mono < self._until

    def is_new(self, kill: LostPod) -> bool:
        """Returns whether this kill has explained no crash yet: the operator repeats what the pod's status shows."""
        return kill not in self._taken

    def take(self, kill: LostPod) -> None:
        """Remembers a kill that has explained a crash, whose wait ends."""
        self._taken = [*self._taken, kill][-KEEP_KILLS:]
        if self._policy.not_before == self._until:
            self._policy.not_before = 0.0
        self._until = 0.0
