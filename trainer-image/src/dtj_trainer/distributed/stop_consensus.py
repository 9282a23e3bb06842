"""What holds for any rank holds for all: when the ranks tell each other that one was asked to stop.

A SIGTERM reaches one rank in the middle of some step, and all must end after the same one. So they meet in a small gather
every `agree_seconds`, at steps that each of them works out from the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dtj_trainer.distributed.process_group import Group

MOST_STEPS = 100


def steps_to_next_exchange(before: int, slowest: float, seconds: float) -> int:
    """Steps to the next meeting, after `before` steps of which the slowest took `slowest` seconds on any rank (pure).

    As many as fit into `seconds`, by the slowest step; at most twice as many as before, and at most 100. So if steps suddenly
    take k times as long, the next meeting is at most k·`seconds` and at most 100 of the new steps away: with the defaults, in
    a pod's grace of 30 s unless steps become more than 50 times slower and take more than 0.25 s. What is late is killed, and
    the run goes on from the last checkpoint.
    """
    fit = seconds / slowest if slowest > 0 else 1.0  # the first step is not measured
    return max(1, int(min(fit, 2 * before, MOST_STEPS)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStatus:
    """What a rank reports to the others, and what the others learn: true for all if it is for one."""

    stop: bool = False
    """It was asked to stop."""
    busy: bool = False
    """It still writes its checkpoint."""
    overdue: bool = False
    """It has done so for longer than a save may take. All ranks end then, or some would run into a closed connection."""
    nonfinite: int = 0
    """So many of its logged losses in a row were not finite."""


class StopConsensus:
    """The ranks' meetings."""

    def __init__(self, group: Group, seconds: float) -> None:
        self._group = group
        self._seconds = seconds
        self._slowest = 0.0
        self._apart = 1
        self._next = 0

    def record_step_seconds(self, seconds: float) -> None:
        """Of this rank's last step."""
        self._slowest = max(self._slowest, seconds)

    def due(self, step: int) -> bool:
        """The ranks meet after this step; the same on all of them."""
        return step >= self._next

    def exchange(self, step: int, mine: RankStatus) -> RankStatus:
        """A collective: what holds for any rank."""
        row = [float(mine.stop), float(mine.busy), float(mine.overdue), float(mine.nonfinite), self._slowest]
        *signs, nonfinite, slowest = self._group.gather(torch.tensor(row, dtype=torch.float64)).amax(0).tolist()
        self._apart, self._slowest = steps_to_next_exchange(self._apart, slowest, self._seconds), 0.0
        self._next = step + self._apart
        stop, busy, overdue = (bool(s) for s in signs)
        return RankStatus(stop=stop, busy=busy, overdue=overdue, nonfinite=int(nonfinite))
