"""The right of a coordinator to start attempts: what fences it from another one. Pure.

With a volume the lease grants each number to one coordinator. Without one a majority of the pods
promises each number to one coordinator, and from then on follows no start below it.
"""

from __future__ import annotations

from typing import Set

from dtj_agent.group.roster import Peer, Roster


class Epoch:
    """`number`: the first attempt that this coordinator has started; 0: none yet."""

    def __init__(self, roster: Roster) -> None:
        self.number = 0
        self.later = 0
        """The greatest attempt that another coordinator is known to have started."""
        self.asked = 0
        """The number that the members are asked to promise; 0: none."""
        self._roster = roster
        self._promises: Set[int] = set()

    def heard_of(self, attempt: int) -> None:
        self.later = max(self.later, attempt)

    def started(self, attempt: int) -> None:
        self.number = self.number or attempt

    def ask(self, attempt: int) -> None:
        self.asked, self._promises = attempt, set()

    def promised(self, peer: Peer) -> bool:
        """Returns whether the peer's promise makes a majority."""
        self._promises.add(peer.ordinal)
        return self._roster.is_majority(self._promises)
