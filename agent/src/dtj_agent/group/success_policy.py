"""Decides when an attempt has succeeded: with all of its ranks, or with rank 0. Pure.

Rank 0 has succeeded when its worker has exited with 0 by itself, not on a signal of the agent. From then on
nothing that happens to another rank is a failure, even if that rank's end has begun to stop the attempt.
A failure that has stopped rank 0 itself restarts the group: rank 0 has not finished its work.
"""

from __future__ import annotations

from typing import Iterable, Tuple

from dtj_agent.group.attempt import Attempt
from dtj_agent.group.history import number
from dtj_agent.group.lifecycle import PHASE_RUNNING, AttemptLifecycle
from dtj_agent.group.messages import Message
from dtj_agent.group.worker_exit import WorkerExit
from dtj_contract import names
from dtj_contract.names import Reason

RANK_ZERO_DONE = "rankZeroDone"
"""Key of a member's hello and heartbeats: the attempt in which its rank 0 succeeded. Older agents ignore it."""


def is_rank_zero_done(exits: Iterable[WorkerExit]) -> bool:
    """Returns whether rank 0 is among the workers that have exited with 0 by themselves."""
    return any(worker.rank == 0 and worker.exit_code == 0 and not worker.requested for worker in exits)


class SuccessPolicy:
    """Knows of the attempts that rank 0 has ended with success. `policy`: names.SUCCESS_*."""

    def __init__(self, policy: str) -> None:
        self._by_rank_zero = policy == names.SUCCESS_RANK_0
        self._rank_zero_done = 0

    def heard(self, message: Message) -> None:
        """Takes a hello or a heartbeat of a member."""
        self._rank_zero_done = max(self._rank_zero_done, int(number(message.get(RANK_ZERO_DONE))))

    def is_met(self, lifecycle: AttemptLifecycle, known_attempt: int) -> bool:
        """Returns whether the attempt has succeeded. `known_attempt`: the greatest that anybody here has heard of."""
        if self._by_rank_zero and 0 < self._rank_zero_done == lifecycle.attempt.number >= known_attempt:
            return True
        return lifecycle.phase == PHASE_RUNNING and lifecycle.attempt.is_done

    def describe(self, attempt: Attempt) -> Tuple[str, str]:
        """Returns reason and message of the success of `attempt`."""
        if self._by_rank_zero and self._rank_zero_done == attempt.number:
            text = "rank 0 of attempt %d exited with 0 (successPolicy %s)"
            return Reason.RANK_0_SUCCEEDED, text % (attempt.number, names.SUCCESS_RANK_0)
        return Reason.SUCCEEDED, "all %d workers of attempt %d exited with 0" % (attempt.world_size, attempt.number)
