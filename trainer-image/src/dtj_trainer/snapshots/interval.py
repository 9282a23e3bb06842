"""How often a snapshot is taken: as often as the budget allows, by what the last ones have cost (pure)."""

from __future__ import annotations

import math
import statistics
from collections import deque

BUDGET = 0.015
"""The share of the training's time that the measured cost may take. No clock shows the caches that a
snapshot empties: with them it stays below 2 %."""
MEASURED = 5
"""The newest costs that count; their median, because a busy machine makes one of them long."""


class Interval:
    """Decides at which steps snapshots are taken, alike on all ranks.

    All that it decides from is agreed: fixed, or exchanged by the ranks.
    """

    def __init__(self, every: int | None) -> None:
        """Takes the steps between two snapshots; None follows the cost."""
        self._fixed = every
        self._every = every
        """Steps between two snapshots; None until the ranks have exchanged what the first has cost."""
        self._next: int | None = None
        self._last = 0
        self._costs: deque[float] = deque(maxlen=MEASURED)
        self._steps: deque[float] = deque(maxlen=2 * MEASURED)

    def begin(self, step: int) -> None:
        """Begins at this step. The first step is no measure, so the first snapshot follows the second."""
        self._next = step + (self._fixed or 2)

    def due(self, step: int) -> bool:
        """Returns whether a snapshot follows this step."""
        return self._next is not None and step >= self._next

    def taken(self, step: int) -> None:
        """Records a snapshot. After the first one, the next one's step may be known only after an exchange."""
        self._last = step
        self._next = step + self._every if self._every else None

    def record_cost(self, seconds: float) -> None:
        """Records what a snapshot has cost this rank."""
        self._costs.append(seconds)

    def record_step(self, seconds: float) -> None:
        """Records a step of this rank, without its saves."""
        self._steps.append(seconds)

    @property
    def cost(self) -> float:
        """Seconds that a snapshot costs this rank; 0 if none was taken."""
        return statistics.median(self._costs) if self._costs else 0.0

    @property
    def step_seconds(self) -> float:
        """A step of this rank; 0 if none was measured."""
        return statistics.median(self._steps) if self._steps else 0.0

    def agreed(self, cost: float, step_seconds: float) -> None:
        """Sets the interval from the greatest cost and step of any rank."""
        if not self._fixed and cost > 0 and step_seconds > 0:
            self._every = steps_between(cost, step_seconds)
            self._next = self._last + self._every


def steps_between(cost: float, step_seconds: float) -> int:
    """Returns the steps between two snapshots that keep to the budget."""
    return max(1, math.ceil(cost / (BUDGET * step_seconds)))
