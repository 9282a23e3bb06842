"""What a connection that breaks and comes back costs, while both agents live. Pure.

It is nobody's fault, and the next attempt goes on from the last checkpoint: free, and answered at once. But a network that
breaks every attempt would restart the group for ever. So what is lost again and again without any progress between
waits longer each time, and from the fourth loss on is counted as a worker's failure is.
"""

from __future__ import annotations

from dtj_agent.group.history import History

FREE_LOSSES = 3  # within the window and without progress


class Flapping:
    """Counts in `history.losses`, which progress empties (ledger.py): so a replaced pod 0 counts on. `window`: seconds."""

    def __init__(self, window: float) -> None:
        self._window = window

    def lost(self, history: History, wall: float) -> int:
        """Another loss at `wall` (Unix seconds): how many there are by now without progress."""
        history.losses = [time for time in history.losses if time > wall - self._window] + [wall]
        history.revision += 1
        return len(history.losses)

    def is_counted(self, losses: int) -> bool:
        """Does the last of so many take a restart from the budget?"""
        return losses > FREE_LOSSES
