"""The lease of the next attempt, as the coordinator sees it: asked for, written, taken by another, or in trouble. Pure.

lease.py does the writing.
"""

from __future__ import annotations

from typing import Optional

from dtj_agent.group.messages import Now
from dtj_contract import names


class Fence:
    """One lease is written at a time; the number only grows."""

    def __init__(self) -> None:
        self.trouble: Optional[str] = None
        """Why there is no lease yet, if it takes long or fails."""
        self.is_replaced = False
        """Another coordinator writes leases after this one has: it makes this job's attempts now, this one makes no more."""
        self._granted = False
        self._tried = 0  # the greatest number that this process has tried to write: an error may hide that it stands there
        self._is_new = True  # what is pending was not tried before
        self._pending: Optional[int] = None
        self._since = 0.0
        self._not_before = 0.0
        self._floor = 0  # the greatest number that the file is known to hold

    def ask(self, known: int, now: Now) -> Optional[int]:
        """The number of the next attempt, to be written now; `known`: the greatest that anyone remembers. None: not now."""
        if self._pending is not None or now.mono < self._not_before or self.is_replaced:
            return None
        self._pending, self._since = 1 + max(known, self._floor), now.mono
        self._is_new, self._tried = self._pending > self._tried, max(self._pending, self._tried)
        return self._pending

    def answered(self, attempt: int, taken: Optional[int], error: Optional[str], now: Now) -> bool:
        """Is the lease of `attempt` ours? Not if the file held `taken` >= `attempt` already, or could not be used (`error`)."""
        if attempt != self._pending:
            return False
        self._pending = None
        if error is not None:
            self.trouble = error
            self._not_before = now.mono + names.LEASE_RETRY_SECONDS
            return False
        self._floor = attempt if taken is None else taken
        self.trouble = None
        if self._granted and taken is not None and (taken > attempt or self._is_new):
            self.is_replaced = True
            self.trouble = "another coordinator of this job has begun attempt %d" % taken
        self._granted = self._granted or taken is None
        return taken is None

    def is_overdue(self, now: Now) -> bool:
        """Has the volume become a reason for waiting that is worth telling?"""
        if self._pending is not None and self.trouble is None and now.mono - self._since > names.LEASE_DEADLINE_SECONDS:
            self.trouble = "the checkpoint volume has not answered for %.0f s" % (now.mono - self._since)
            return True
        return False
