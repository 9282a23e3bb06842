"""The request for the next attempt's lease: pending, granted, taken, or overdue. Pure.

files/lease_file.py writes the lease.
"""

from __future__ import annotations

from typing import Optional

from dtj_agent.group.messages import Now
from dtj_contract import names


class LeaseRequest:
    """Requests one lease at a time; the number only grows."""

    def __init__(self) -> None:
        self.trouble: Optional[str] = None
        """Why there is no lease yet, if the volume is slow or fails."""
        self.is_replaced = False
        """Another coordinator wrote a later lease and runs the job now."""
        self.is_granted = False
        """A number was granted to this process."""
        self._pending: Optional[int] = None
        self._since = 0.0
        self._not_before = 0.0
        self._floor = 0
        """The greatest number that the file is known to hold."""

    def request(self, known: int, now: Now) -> Optional[int]:
        """Returns the number of the next attempt, to be written now; None: not now.

        `known`: the greatest attempt that any agent remembers.
        """
        if self._pending is not None or now.mono < self._not_before or self.is_replaced:
            return None
        self._pending, self._since = 1 + max(known, self._floor), now.mono
        return self._pending

    def answered(self, attempt: int, taken: Optional[int], error: Optional[str], now: Now) -> bool:
        """Returns whether the lease of `attempt` is granted.

        `taken`: the file held this number >= `attempt` already; `error`: the file could not be
        used. A number that was written despite an error may as well be another coordinator's.
        """
        if attempt != self._pending:
            return False
        self._pending = None
        if error is not None:
            self.trouble = error
            self._not_before = now.mono + names.LEASE_RETRY_SECONDS
            return False
        self._floor = attempt if taken is None else taken
        self.trouble = None
        if self.is_granted and taken is not None:
            self.is_replaced = True
            self.trouble = "another coordinator of this job has started attempt %d" % taken
        self.is_granted = self.is_granted or taken is None
        return taken is None

    def is_overdue(self, now: Now) -> bool:
        """Returns whether the volume has just become a reason for waiting that is worth reporting."""
        if self._pending is not None and self.trouble is None and now.mono - self._since > names.LEASE_DEADLINE_SECONDS:
            self.trouble = "the checkpoint volume has not answered for %.0f s" % (now.mono - self._since)
            return True
        return False
