"""Slow ranks: those whose own work in a step takes longer than that of the others. Pure."""

from __future__ import annotations

from typing import Dict, List

from dtj_agent.group.vitals import RankVitals

RATIO = 1.3
"""To the median rank, from which on a rank is slow. A rank's own time is a median over 20 steps or more."""
RECOVERED_RATIO = 1.2
MIN_SECONDS = 0.005
"""A smaller difference is noise, whatever its ratio."""


class StragglerWatch:
    """Keeps the slow ranks of the running attempt in `slow`: rank -> ratio to the median."""

    def __init__(self) -> None:
        self.slow: Dict[int, float] = {}

    def look(self, ranks: Dict[int, RankVitals]) -> List[int]:
        """Takes the vitals of all running ranks. Returns the ranks that have become slow since the last call."""
        own = {rank: each.own for rank, each in ranks.items() if each.own is not None}
        if len(own) < 2:
            self.slow = {}
            return []
        # Of two ranks, the faster one is the measure.
        median = sorted(own.values())[(len(own) - 1) // 2]
        before, self.slow = self.slow, {}
        for rank, seconds in sorted(own.items()):
            ratio = seconds / median if median > 0 else 1.0
            least = RECOVERED_RATIO if rank in before else RATIO
            if ratio > least and seconds - median >= MIN_SECONDS:
                self.slow[rank] = ratio
        return [rank for rank in self.slow if rank not in before]
