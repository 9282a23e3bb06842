"""How long the group waits before its next attempt. Pure.

A failure is answered at once: that is what an agent is for. Only attempts that end one after the other before their first
step wait, longer each time, so that a volume or a name server that is away for a minute does not cost the whole budget.
"""

from __future__ import annotations

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
QUICK_SECONDS = 60.0  # what lived longer did something, reported or not: a plain torchrun script never reports a step


class Backoff:
    """Fed with each attempt that failed by itself."""

    def __init__(self) -> None:
        self.barren = 0
        """Attempts in a row that ended soon and without a step."""
        self.until = 0.0
        """Monotonic time before which no attempt is to start."""

    def failed(self, stepped: bool, lived: float, now: float) -> float:
        """An attempt has failed after `lived` seconds; returns the seconds to wait. The first one is tried again at once."""
        self.barren = 0 if stepped or lived >= QUICK_SECONDS else self.barren + 1
        wait = 0.0 if self.barren < 2 else min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** (self.barren - 2))
        self.until = now + wait
        return wait
