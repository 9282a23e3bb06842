"""The pod that is to be replaced on another node before the next attempt (RestartElsewhere). Pure."""

from __future__ import annotations

from typing import Optional, Tuple

from dtj_agent.group.effects import Outbox
from dtj_agent.group.messages import Now
from dtj_agent.group.roster import Peer, Roster
from dtj_contract import names


class MovingPod:
    """Only the operator can replace a pod. If the operator does not in time, the group restarts in place."""

    def __init__(self, roster: Roster, outbox: Outbox, has_other_nodes: bool) -> None:
        self._roster = roster
        self._outbox = outbox
        self._has_other_nodes = has_other_nodes
        self._is_explained = False
        self._moving: Optional[Tuple[int, str, float]] = None
        """Ordinal, incarnation, and how long to wait."""

    def request(self, ordinal: int, now: Now) -> None:
        """Waits from now on until the pod of `ordinal` is another one."""
        peer = self._roster.peers.get(ordinal)
        if peer is None:
            return
        if not peer.node or not self._has_other_nodes:
            if not self._is_explained:
                self._outbox.log("action RestartElsewhere restarts in place here, because there are no other nodes")
            self._is_explained = True
            return
        self._moving = peer.ordinal, peer.incarnation, now.mono + names.ELSEWHERE_SECONDS
        self._outbox.log("waiting for %s to be replaced on another node than %s" % (peer.pod, peer.node))

    def name(self, now: Now) -> str:
        """Returns the pod that the next attempt waits for; "" if there is none."""
        peer = self._unmoved()
        return "" if peer is None or self._moving is None or now.mono >= self._moving[2] else peer.pod

    def stop_waiting(self) -> None:
        """Logs a pod that is still there; the next attempt starts."""
        unmoved, self._moving = self._unmoved(), None
        if unmoved is not None:
            text = "%s was not replaced within %.0f s: the group restarts in place"
            self._outbox.log(text % (unmoved.pod, names.ELSEWHERE_SECONDS))

    def _unmoved(self) -> Optional[Peer]:
        ordinal, incarnation, _ = self._moving or (-1, "", 0.0)
        peer = self._roster.peers.get(ordinal)
        return peer if peer is not None and peer.incarnation == incarnation else None
