"""How many restarts a job may still have. Pure; the operator counts with the same class."""

from __future__ import annotations

from typing import Iterable, List


class RestartBudget:
    """At most `max_restarts` counted restarts within any `window` seconds; a newer checkpoint empties the count."""

    def __init__(self, max_restarts: int, window: float, spent: Iterable[float] = ()) -> None:
        self.max_restarts = max_restarts
        self.window = window
        self.spent: List[float] = sorted(spent)
        """Unix times of the counted restarts that still weigh."""

    def spend(self, now: float) -> bool:
        """Count one restart at `now`; False: there is none left, and nothing is counted."""
        self.spent = [time for time in self.spent if time > now - self.window]
        if len(self.spent) >= self.max_restarts:
            return False
        self.spent.append(now)
        return True

    def refill(self) -> None:
        """The job has a checkpoint that it had not before: what failed until now no longer weighs."""
        self.spent = []
