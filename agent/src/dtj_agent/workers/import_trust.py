"""Decides when the script's imports are no longer done ahead: after attempts that ended before their first step. Pure.

No rule sees every import whose result depends on what the script did before (decision 0031). Without this, such
an import would end each restart in the same way, and a job that trained before would fail for good.
"""

from __future__ import annotations

from typing import Optional

ENDS = 2
"""The attempts in a row that end before their first step; one is enough if a rank of this pod has failed by itself."""
SECONDS = 60.0
"""How long an attempt is young, where no step is ever seen."""


class ImportTrust:
    """Judges each attempt of one pod when it has ended."""

    def __init__(self) -> None:
        self._began: Optional[float] = None
        """When the attempt began; None if nothing was imported ahead for it."""
        self._failed = False
        self._has_stepped = False
        """Whether an attempt of this pod has taken a step."""
        self._ends = 0

    def begin(self, now: float, ahead: bool) -> None:
        """Begins an attempt. `ahead`: whether imports of the script were done ahead for it."""
        self._began, self._failed = now if ahead else None, False

    def fail(self) -> None:
        """Notes that a rank of this pod has failed by itself in this attempt."""
        self._failed = True

    def end(self, now: float, stepped: bool) -> bool:
        """Ends the attempt. Returns whether nothing must be imported ahead from now on."""
        began, self._began = self._began, None
        self._has_stepped = self._has_stepped or stepped
        if stepped:
            self._ends = 0
        elif began is not None and (self._has_stepped or now - began < SECONDS):
            self._ends += ENDS if self._failed else 1
        return self._ends >= ENDS
