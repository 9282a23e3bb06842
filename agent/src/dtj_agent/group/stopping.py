"""How an attempt is stopped on all its members, and whom the group waits for meanwhile. Pure."""

from __future__ import annotations

from typing import List

from dtj_agent.group.attempt import Attempt
from dtj_agent.group.effects import Outbox
from dtj_agent.group.messages import DONE, RUNNING, STOPPING, Now
from dtj_agent.group.roster import Peer, Roster
from dtj_contract import names


class AttemptStop:
    """The stop of one attempt, from its first failure until no member has workers left."""

    def __init__(self, attempt: Attempt, roster: Roster, now: Now) -> None:
        self._attempt = attempt
        self._peers = roster.peers
        self._deadline = now.mono
        self._shortest_grace = float("inf")

    def request(self, grace: float, outbox: Outbox, now: Now) -> None:
        """Stops the members that still run, and shortens the grace of those that are stopping.

        A member that is stopping already gets a message for a shorter grace only: all ranks fail of
        one cause, and n failures answered to n members each would drown the group.
        """
        self._deadline = max(self._deadline, now.mono + grace + 2 * names.STUCK_SECONDS)
        shorter, self._shortest_grace = grace < self._shortest_grace, min(grace, self._shortest_grace)
        for peer in self._members():
            if peer.state in (RUNNING, DONE) or (peer.state == STOPPING and shorter):
                outbox.send(peer.conn, {"type": "stop", "attempt": self._attempt.number, "grace": grace})
                peer.state = STOPPING

    def pending(self) -> List[Peer]:
        """Returns the members whose workers are still stopping, by ordinal."""
        return [peer for peer in self._members() if peer.state == STOPPING]

    def is_overdue(self, now: Now) -> bool:
        """Returns whether every member has had time enough to report what became of its workers."""
        return now.mono > self._deadline

    def _members(self) -> List[Peer]:
        return [self._peers[ordinal] for ordinal in self._attempt.node_ranks if ordinal in self._peers]
