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
        self._roster = roster
        self._deadline = now.mono
        self._shortest_grace = float("inf")

    def request(self, grace: float, outbox: Outbox, now: Now) -> None:
        """Stops the members that still run, and shortens the grace of those that are stopping.

        A member that is stopping already gets a message for a shorter grace only: all ranks fail of
        one cause, and n failures answered to n members each would drown the group.
        """
        self._deadline = max(self._deadline, now.mono + grace + 2 * names.STUCK_SECONDS)
        shorter, self._shortest_grace = grace < self._shortest_grace, min(grace, self._shortest_grace)
        message = {"type": "stop", "attempt": self._attempt.number, "grace": grace}
        for peer in self._members(RUNNING, DONE, *([STOPPING] if shorter else [])):
            outbox.send(peer.conn, message)
            peer.state = STOPPING

    @property
    def is_pending(self) -> bool:
        """Whether the workers of any member are still stopping."""
        return any(ordinal in self._attempt.node_ranks for ordinal in self._roster.in_state(STOPPING))

    def pending(self) -> List[Peer]:
        """Returns the members whose workers are still stopping, by ordinal."""
        return self._members(STOPPING)

    def is_overdue(self, now: Now) -> bool:
        """Returns whether every member has had time enough to report what became of its workers."""
        return now.mono > self._deadline

    def _members(self, *states: str) -> List[Peer]:
        """Returns the members in these states, by ordinal."""
        found = [peer for state in states for peer in self._roster.in_state(state).values()]
        return sorted((p for p in found if p.ordinal in self._attempt.node_ranks), key=lambda peer: peer.ordinal)
