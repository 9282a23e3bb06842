"""How long the group waits before its next attempt. Pure.

A failure is answered at once: that is what an agent is for. Only attempts that end one after the other, soon and before
their first step, wait, longer each time, so that a volume or a name server that is away for a minute does not cost the
whole budget.
"""

from __future__ import annotations

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
LONGEST_LOST_SECONDS = 120.0  # a network that is being mended: its waits may not cost a job its budget within minutes
QUICK_SECONDS = 10.0  # what lived longer may have trained: a plain torchrun script never reports a step


class Backoff:
    """Fed with each attempt that failed by itself, or that the network broke."""

    def __init__(self) -> None:
        self.barren = 0
        """Attempts in a row that ended soon and without a step."""
        self.until = 0.0
        """Monotonic time before which no attempt is to start."""

    def lost(self, losses: int, now: float) -> float:
        """The network has broken an attempt, for the `losses`-th time without progress; returns the seconds to wait."""
        return self._wait(losses, LONGEST_LOST_SECONDS, now)

    def failed(self, stepped: bool, lived: float, now: float) -> float:
        """An attempt has failed after `lived` seconds; returns the seconds to wait. The first one is tried again at once."""
        self.barren = 0 if stepped or lived >= QUICK_SECONDS else self.barren + 1
        return self._wait(self.barren, LONGEST_SECONDS, now)

    def _wait(self, tries: int, longest: float, now: float) -> float:
        wait = 0.0 if tries < 2 else min(longest, FIRST_SECONDS * 2 ** min(tries - 2, 30))
        self.until = now + wait
        return wait
