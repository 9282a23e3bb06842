"""The right of a coordinator to start attempts: what fences it from another one. Pure.

With a volume the lease grants each number to one coordinator. Without one a majority of the pods
promises each number to one coordinator, and from then on follows no start below it. A promise holds
as long as the link of its agent does.
"""

from __future__ import annotations

from typing import List, Optional, Set

from dtj_agent.group.effects import Outbox
from dtj_agent.group.history import History
from dtj_agent.group.messages import Message, Now
from dtj_agent.group.roster import Peer, Roster
from dtj_agent.group.witnesses import Witnesses
from dtj_contract import names


class Epoch:
    """`number`: the first attempt that this coordinator has started; 0: none yet."""

    def __init__(self, roster: Roster, witnesses: Witnesses, history: History, floor: int) -> None:
        self.number = 0
        self.later = 0
        """The greatest attempt that another coordinator is known to have started."""
        self.asked = 0
        """The number that the members are asked to promise; 0: none."""
        self.taken = 0
        """The attempt that others have started meanwhile, as the lease shows; 0: none."""
        self._taken_at = 0.0
        self._floor = floor - 1
        self._copied = history.copy()
        """The history before this coordinator added to it."""
        self._roster = roster
        self._witnesses = witnesses
        self._promises: Set[int] = set()

    def heard_of(self, attempt: int) -> None:
        self.later = max(self.later, attempt)

    def started(self, attempt: int, members: List[Peer], outbox: Outbox) -> None:
        is_first = self._witnesses.are_all_new
        self.number = self.number or attempt
        for peer in members:
            self._roster.taught(peer)
        # Members remember by their start. The others have missed nothing if it is the first one.
        self._teach(list(self._roster.forgetful.values()) if is_first else [], attempt, outbox)

    def lease_taken(self, attempt: Optional[int], now: Now) -> None:
        """Notes that the lease held `attempt` already, if it did, before this coordinator had started any."""
        if attempt is not None and not self.number:
            self.taken, self._taken_at = attempt, now.mono

    def is_outrun(self, attempt: int, now: Now) -> bool:
        """Returns whether others, who are more, continue without this agent, or have ended the job.

        A start here would take the lease from them, and break their training. `attempt`: the last
        one of this coordinator's history.
        """
        peers = self._roster.peers
        if max(self.taken, self.later) <= self._remembered(attempt):
            return False
        if len(peers) < self._roster.pods and self.may_have_missed(attempt, now):
            return True
        return not self._witnesses.remember(peers.keys(), now)

    def may_have_missed(self, attempt: int, now: Now) -> bool:
        """Returns whether an agent that is away may know the attempt in the lease, and its end; for a minute."""
        return self.taken > self._remembered(attempt) and now.mono < self._taken_at + names.FIRST_START_SECONDS

    def _remembered(self, attempt: int) -> int:
        return max(self._floor, attempt, self._roster.greatest_attempt)

    def is_vouched(self, now: Now) -> bool:
        """Returns whether so many agents here remember the job that no others can have continued it."""
        return self._witnesses.are_majority(self._roster.peers.keys(), now)

    def waiting(self, attempt: int, now: Now) -> str:
        """Returns what the right to start waits for; "" if nothing. `attempt`: as for `is_outrun`."""
        if self.is_outrun(attempt, now):
            return "attempt %d was started by pods that can't be reached from here" % max(self.taken, self.later)
        return "" if self.is_vouched(now) else self._witnesses.waiting(now)

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

    def ask(self, outbox: Outbox) -> None:
        """Asks all members to promise the number that is requested."""
        for peer in self._roster.peers.values():
            outbox.send(peer.conn, {"type": "promise", "attempt": self.asked})

    def joined(self, peer: Peer, attempt: int, outbox: Outbox) -> None:
        """Asks a member that has joined for its promise, if a number is requested.

        To teach one that remembers nothing, the others are asked for the last attempt's number once
        more: their answers show at once that they have not gone to another coordinator. Several are
        taught by `tick`, or the work of a large group that loses many pods would grow with their square.
        """
        if self.asked:
            outbox.send(peer.conn, {"type": "promise", "attempt": self.asked})
        if self.number and not peer.remembers and len(self._roster.forgetful) == 1:
            for other in self._roster.peers.values():
                if other.remembers:
                    outbox.send(other.conn, {"type": "promise", "attempt": attempt})

    def promised(self, peer: Peer, message: Message, known: int, outbox: Outbox, now: Now) -> bool:
        """Returns whether the peer's answer decides on the number that is requested. `known`: as for `teach`."""
        if message["attempt"] != self.asked:
            if len(self._roster.forgetful) == 1:
                self.teach(known, outbox, now)
            return False
        if message["granted"]:
            self._promises.add(peer.ordinal)
        return not message["granted"] or self._is_promised(now)

    def _is_promised(self, now: Now) -> bool:
        return self.asked > 0 and self._witnesses.are_majority(self._promises, now)

    def left(self, peer: Peer) -> None:
        self._promises.discard(peer.ordinal)

    def teach(self, known: int, outbox: Outbox, now: Now) -> bool:
        """Lets agents count that had lost their memory, once this coordinator surely leads a majority.

        Returns whether a majority has promised the number that is requested: an agent that promised
        earlier may count from now on. `known`: the greatest attempt that anybody here has heard of.
        """
        strangers = self._witnesses.to_teach() if self.number else []
        self._teach(strangers, max(known, self._roster.greatest_promise), outbox)
        return self._is_promised(now)

    def _teach(self, peers: List[Peer], attempt: int, outbox: Outbox) -> None:
        for peer in peers:
            self._roster.taught(peer)
            outbox.send(peer.conn, {"type": "remember", "attempt": attempt})
