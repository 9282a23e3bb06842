"""The connected agents: which could be in the next attempt, and which are missing. Pure."""

from __future__ import annotations

from typing import Dict, List, Optional

from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.messages import DONE, IDLE, STUCK, Message, Now

MAX_NAMED = 8
"""Missing pods that a message lists by name."""


class Peer:
    """A connected agent, as its last hello described it."""

    def __init__(self, conn: int, hello: Message, now: Now) -> None:
        self.conn = conn
        self.ordinal: int = hello["ordinal"]
        self.incarnation: str = hello["incarnation"]
        self.pod: str = hello["pod"]
        self.node: str = hello["node"]
        self.address: str = hello["address"]
        self.port: int = hello["port"]
        self.state: str = hello["state"]
        self.attempt: int = hello["attempt"]
        self.leaving = False
        self.heard = now.mono
        self.outcome_sent = False


class Roster:
    """Keeps the connected agents in `peers`, by ordinal."""

    def __init__(self, spec: GroupSpec) -> None:
        self.peers: Dict[int, Peer] = {}
        self._spec = spec
        self._left: Dict[int, float] = {}
        """Monotonic time at which the last connection of an ordinal ended."""

    def add(self, peer: Peer) -> None:
        self.peers[peer.ordinal] = peer

    def remove(self, peer: Peer, now: Now) -> None:
        del self.peers[peer.ordinal]
        self._left[peer.ordinal] = now.mono

    @property
    def greatest_attempt(self) -> int:
        """The greatest attempt that a connected agent was started for."""
        return max((peer.attempt for peer in self.peers.values()), default=0)

    def by_conn(self, conn: int) -> Optional[Peer]:
        for peer in self.peers.values():
            if peer.conn == conn:
                return peer
        return None

    def ready(self) -> List[Peer]:
        """Returns the members of an attempt that starts now: the lowest ordinals that are free and stay."""
        ready = [peer for _, peer in sorted(self.peers.items()) if peer.state in (IDLE, DONE) and not peer.leaving]
        return ready[: self._spec.replicas]

    def missing(self) -> List[int]:
        """Returns the ordinals without which no attempt can start."""
        ready = {peer.ordinal for peer in self.ready()}
        if len(ready) >= self._spec.replicas:
            return []
        return [ordinal for ordinal in range(self._spec.replicas) if ordinal not in ready]

    def waiting(self, now: Now) -> str:
        """Returns `waiting for digits-1 (left 12 s ago), ...`; "" if no agent is missing."""
        missing = self.missing()
        named = ["%s-%d (%s)" % (self._spec.job, ordinal, self._why(ordinal, now)) for ordinal in missing[:MAX_NAMED]]
        more = ["and %d more" % (len(missing) - MAX_NAMED)] if len(missing) > MAX_NAMED else []
        return "waiting for " + ", ".join(named + more) if missing else ""

    def _why(self, ordinal: int, now: Now) -> str:
        peer = self.peers.get(ordinal)
        if peer is None and ordinal in self._left:
            return "left %.0f s ago" % (now.mono - self._left[ordinal])
        if peer is None:
            return "never seen"
        if peer.state == STUCK:
            return "its workers can't be killed; its pod must be replaced"
        return "its pod is terminating" if peer.leaving else "its workers are being stopped"
