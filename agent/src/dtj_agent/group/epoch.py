"""The right of a coordinator to start attempts: what fences it from another one. Pure.

With a volume the lease grants each number to one coordinator. Without one a majority of the pods
promises each number to one coordinator, and from then on follows no start below it.
"""

from __future__ import annotations

from typing import Dict, Optional, Set

from dtj_agent.group.effects import Outbox
from dtj_agent.group.history import History
from dtj_agent.group.roster import Peer, Roster


class Epoch:
    """`number`: the first attempt that this coordinator has started; 0: none yet."""

    def __init__(self, roster: Roster, history: History) -> None:
        self.number = 0
        self.later = 0
        """The greatest attempt that another coordinator is known to have started."""
        self.asked = 0
        """The number that the members are asked to promise; 0: none."""
        self.taken = 0
        """The attempt that others have started meanwhile, as the lease shows; 0: none."""
        self._copied = history.copy()
        """The history before this coordinator added to it."""
        self._roster = roster
        self._promises: Set[int] = set()

    def heard_of(self, attempt: int) -> None:
        self.later = max(self.later, attempt)

    def started(self, attempt: int) -> None:
        self.number = self.number or attempt

    def lease_taken(self, attempt: Optional[int]) -> None:
        """Notes that the lease held `attempt` already, if it did, before this coordinator had started any."""
        if attempt is not None and not self.number:
            self.taken = attempt

    def is_outrun(self, known: int) -> bool:
        """Returns whether others, who are more, continue without this agent.

        A start here would take the lease from them, and break their training. `known`: the greatest
        attempt that an agent here remembers.
        """
        return self.taken > known and not self._roster.is_majority(self._roster.peers)

    def take_over(self, theirs: History, own: History) -> Optional[History]:
        """Returns the member's history to continue with, if it is newer than `own`; else None.

        With an older copy this coordinator is new. The notes that it has made meanwhile (its own
        agent had crashed) make its copy no newer; they are added to the member's.
        """
        if not theirs.newer_than(own if self.number else self._copied):
            return None
        copied, self._copied = self._copied, theirs.copy()
        theirs.take_over(own, copied)
        return theirs

    def request(self, attempt: int) -> None:
        self.asked, self._promises = attempt, set()

    def ask(self, peers: Dict[int, Peer], outbox: Outbox) -> None:
        """Asks these members to promise the number that is requested, if any is."""
        for peer in peers.values() if self.asked else ():
            outbox.send(peer.conn, {"type": "promise", "attempt": self.asked})

    def promised(self, peer: Peer) -> bool:
        """Returns whether the peer's promise makes a majority."""
        self._promises.add(peer.ordinal)
        return self._roster.is_majority(self._promises)
