"""Finds out which coordinator continues the job. Pure.

Pod 0 may be replaced while its old agent lives on, on a node that is cut off.
"""

from __future__ import annotations

from typing import Optional

from dtj_agent.group.history import History


class Succession:
    """Knows the attempts that this process started, and later ones of another coordinator."""

    def __init__(self, history: History) -> None:
        self.started = 0
        """The last attempt that this very process started; 0: none yet."""
        self.later = 0
        """The greatest attempt that another coordinator is known to have started."""
        self._remembered = history.attempt
        """The last attempt that this pod knew when this process began."""
        self._copied = history.copy()
        """The history before this process added to it."""

    @property
    def announced(self) -> int:
        """The last attempt that this pod started, which calls to members carry; 0 for a new pod.

        A new process in an old pod announces what the pod remembers. With 0 it would pass for a new
        pod 0, and take the members from the pod that has replaced it.
        """
        return self.started or self._remembered

    def heard_of(self, attempt: int) -> None:
        self.later = max(self.later, attempt)

    def is_behind(self, reached: int) -> bool:
        """Returns whether another coordinator went beyond `reached`.

        Then this coordinator can't know how the job ends.
        """
        return self.later > reached

    def is_replaced(self, reached: int) -> bool:
        """Returns whether another coordinator has started attempts after those of this process."""
        return bool(self.started and self.is_behind(reached))

    def take_over(self, theirs: History, own: History) -> Optional[History]:
        """Returns the member's history to continue with, if it is newer than `own`; else None.

        With an older copy this coordinator is new: pod 0 was replaced, or its process. The notes
        that a new process has made meanwhile (its own agent had crashed) make its copy no newer;
        they are added to the member's.
        """
        if not theirs.newer_than(own if self.started else self._copied):
            return None
        copied, self._copied = self._copied, theirs.copy()
        theirs.take_over(own, copied)
        return theirs

    def resume(self, history: History) -> None:
        """Continues after the attempts of the other coordinator."""
        self.started, self._remembered, self._copied = 0, history.attempt, history.copy()
