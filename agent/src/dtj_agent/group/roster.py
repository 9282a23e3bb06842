"""Who is connected, who could be in the next attempt, and who is missed. Pure."""

from __future__ import annotations

from typing import Dict, List, Optional

from dtj_agent.group.effects import Peer, Rules
from dtj_agent.group.messages import DONE, IDLE, STUCK, Now

NAMED = 8  # of those that are missed


class Roster:
    """`peers` by ordinal."""

    def __init__(self, rules: Rules) -> None:
        self.peers: Dict[int, Peer] = {}
        self._rules = rules
        self._left: Dict[int, float] = {}  # monotonic time at which a connection ended

    def add(self, peer: Peer) -> None:
        self.peers[peer.ordinal] = peer

    def remove(self, peer: Peer, now: Now) -> None:
        del self.peers[peer.ordinal]
        self._left[peer.ordinal] = now.mono

    def by_conn(self, conn: int) -> Optional[Peer]:
        for peer in self.peers.values():
            if peer.conn == conn:
                return peer
        return None

    def ready(self) -> List[Peer]:
        """The agents that would make up an attempt now: the lowest ordinals that have no worker and stay."""
        ready = [peer for _, peer in sorted(self.peers.items()) if peer.state in (IDLE, DONE) and not peer.leaving]
        return ready[: self._rules.replicas]

    def missing(self) -> List[int]:
        """Ordinals without which no attempt can start."""
        ready = {peer.ordinal for peer in self.ready()}
        if len(ready) >= self._rules.replicas:
            return []
        return [ordinal for ordinal in range(self._rules.replicas) if ordinal not in ready]

    def waiting(self, now: Now) -> str:
        """The same for people: `waiting for digits-1 (left 12 s ago), digits-2 (never seen)`; "" if nobody is missed."""
        missing = self.missing()
        named = ["%s-%d (%s)" % (self._rules.job, ordinal, self._why(ordinal, now)) for ordinal in missing[:NAMED]]
        more = ["and %d more" % (len(missing) - NAMED)] if len(missing) > NAMED else []
        return "waiting for " + ", ".join(named + more) if missing else ""

    def _why(self, ordinal: int, now: Now) -> str:
        peer = self.peers.get(ordinal)
        if peer is None and ordinal in self._left:
            return "left %.0f s ago" % (now.mono - self._left[ordinal])
        if peer is None:
            return "never seen"
        if peer.state == STUCK:
            return "its workers can't be ended: its pod has to be replaced"
        return "its pod ends" if peer.leaving else "its workers are being stopped"
