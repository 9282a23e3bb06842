"""The exchange of the ranks' status: a stop request to any rank stops all after the same step.

A SIGTERM reaches one rank in the middle of some step, and all ranks must end after the same one.
The ranks exchange a few numbers by a small gather about every `agree_seconds`, at steps that each rank
computes from the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dtj_trainer.distributed.process_group import Group

MOST_STEPS = 100


def steps_to_next_exchange(before: int, slowest: float, seconds: float) -> int:
    """Returns the steps to the next exchange.

    The last interval had `before` steps, of which the slowest took `slowest` seconds on any rank.
    The next one has as many steps as fit into `seconds`, by the slowest step; at most twice as many
    as before, and at most 100. If steps suddenly take k times as long, the next exchange is
    therefore at most k·`seconds` and at most 100 of the new steps away: with the defaults, within a
    pod's grace period of 30 s unless steps become more than 50 times slower and take more than 0.25
    s. A rank that is too late is killed, and the run resumes from the last checkpoint.
    """
    fit = seconds / slowest if slowest > 0 else 1.0  # the first step is not measured
    return max(1, int(min(fit, 2 * before, MOST_STEPS)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStatus:
    """The status that a rank reports to the others; after an exchange, what holds for any rank."""

    stop: bool = False
    """The rank was asked to stop."""
    busy: bool = False
    """The rank still writes its checkpoint."""
    overdue: bool = False
    """The rank has written its checkpoint for longer than a save may take. All ranks end then,
    because some would otherwise run into a closed connection."""
    nonfinite: int = 0
    """How many of its logged losses in a row were not finite."""
    snapshot_seconds: float = 0.0
    """Seconds that a memory snapshot costs the rank; 0 if none was taken."""
    step_seconds: float = 0.0
    """How long its steps take, without what follows them."""


class StopConsensus:
    """Decides when the ranks exchange their status, and exchanges it."""

    def __init__(self, group: Group, seconds: float) -> None:
        self._group = group
        self._seconds = seconds
        self._slowest = 0.0
        self._interval = 1
        self._next = 0

    def record_step_seconds(self, seconds: float) -> None:
        """Records how long this rank's last step took."""
        self._slowest = max(self._slowest, seconds)

    def due(self, step: int) -> bool:
        """Returns whether the ranks exchange after this step; the same on all of them."""
        return step >= self._next

    def exchange(self, step: int, mine: RankStatus) -> RankStatus:
        """Returns what holds for any rank; a collective."""
        row = [float(mine.stop), float(mine.busy), float(mine.overdue), float(mine.nonfinite)]
        row += [mine.snapshot_seconds, mine.step_seconds, self._slowest]
        *flags, nonfinite, snapshot, step_seconds, slowest = (
            self._group.gather(torch.tensor(row, dtype=torch.float64)).amax(0).tolist()
        )
        self._interval, self._slowest = steps_to_next_exchange(self._interval, slowest, self._seconds), 0.0
        self._next = step + self._interval
        stop, busy, overdue = (bool(flag) for flag in flags)
        return RankStatus(
            stop=stop,
            busy=busy,
            overdue=overdue,
            nonfinite=int(nonfinite),
            snapshot_seconds=snapshot,
            step_seconds=step_seconds,
        )
