"""Decides what a reflector does next: lists, or watches from a version, after which pause. Pure.

    list ── succeeded ──> watch ── ended, no connection, 5xx ──> watch from the last version
      ^                     │
      └── 410: too old ─────┘

Every failure doubles the pause; an event or a bookmark ends the row. A watch that ends at once
without an event counts as a failure, so a server that drops every watch is not flooded.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 0.5
LAST_SECONDS = 30.0
# A shorter watch without an event is a failure.
SHORT_SECONDS = 1.0


@dataclass
class ReflectorState:
    """The version to watch from, and the failures in a row."""

    version: str | None = None
    """None: a list is needed first."""
    failures: int = 0
    at_once: bool = False
    """Whether the next try needs no pause in spite of a failure."""

    def listed(self, version: str) -> None:
        """Records a complete list as of `version`. Failures still count until the watch from there lasts."""
        self.version = version

    def advanced(self, version: str) -> None:
        """Records an event or a bookmark of the watch."""
        self.version = version or self.version
        self.failures = 0

    def ended(self, seconds: float) -> None:
        """Records that the watch ended as asked, after this time."""
        self.failures = self.failures + 1 if seconds < SHORT_SECONDS else 0

    def failed(self, seconds: float = 0.0) -> None:
        """Records that a list failed, or a watch after this time. The version stays: the next watch misses nothing."""
        self.failures = self.failures + 1 if seconds < SHORT_SECONDS else 1
        self.at_once = False

    def expired(self, seconds: float = 0.0) -> None:
        """Records that the API server no longer has the changes since the version: the objects must be listed."""
        self.failed(seconds)
        self.version = None
        self.at_once = self.failures == 1

    def pause(self, jitter: float) -> float:
        """Returns the seconds until the next try.

        `jitter`: from 0 to 1; spreads the reflectors of many operators. The first list after a gap comes
        at once.
        """
        if self.failures == 0 or self.at_once:
            return 0.0
        return float(min(FIRST_SECONDS * 2.0 ** min(self.failures - 1, 16), LAST_SECONDS)) * (0.5 + jitter / 2)
