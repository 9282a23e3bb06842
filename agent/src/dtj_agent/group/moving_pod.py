"""The pods that are to be replaced on other nodes (RestartElsewhere). Pure.

Spares that are free take the ranks of such pods at once. Without them the group waits, because only
the operator can replace a pod. If the operator does not in time, the group restarts in place.
"""

from __future__ import annotations

from typing import Dict, Iterator, List

from dtj_agent.group.effects import Outbox
from dtj_agent.group.messages import Now
from dtj_agent.group.roster import Peer, Roster
from dtj_contract import names


class MovingPod:
    """Keeps how long to wait for each pod; the roster ranks these pods last (`Roster.moving`)."""

    def __init__(self, roster: Roster, outbox: Outbox, has_other_nodes: bool) -> None:
        self._roster = roster
        self._outbox = outbox
        self._has_other_nodes = has_other_nodes
        self._is_explained = False
        self._until: Dict[int, float] = {}
        """How long to wait, by ordinal."""

    def request(self, ordinal: int, now: Now) -> None:
        """Waits from now on until the pod of `ordinal` is another one, or spares can do without it."""
        peer = self._roster.peers.get(ordinal)
        if peer is None:
            return
        if not peer.node or not self._has_other_nodes:
            if not self._is_explained:
                self._outbox.log("action RestartElsewhere restarts in place here, because there are no other nodes")
            self._is_explained = True
            return
        self._roster.moving[ordinal] = peer.incarnation
        self._until[ordinal] = now.mono + names.ELSEWHERE_SECONDS
        self._outbox.log("waiting for %s to be replaced on another node than %s" % (peer.pod, peer.node))

    def name(self, leader: int, now: Now) -> str:
        """Returns the pod that the next attempt waits for; "" if there is none.

        `leader`: the ordinal of this agent. An attempt that starts before the operator has replaced
        the leader's own pod would break with it, so no spare replaces that pod yet.
        """
        unmoved = (peer for peer in self._unmoved() if now.mono < self._until[peer.ordinal])
        return next((peer.pod for peer in unmoved if peer.ordinal == leader or self._is_needed(peer)), "")

    def started(self, members: List[Peer]) -> None:
        """Logs which pods are still there; `members` form the attempt that starts."""
        for peer in list(self._unmoved()):
            if peer in members:
                del self._roster.moving[peer.ordinal]
                text = "%s was not replaced within %.0f s: the group restarts in place"
                self._outbox.log(text % (peer.pod, names.ELSEWHERE_SECONDS))
            else:
                self._outbox.log("the group starts without %s, which is to be replaced on another node" % peer.pod)

    def _is_needed(self, peer: Peer) -> bool:
        """Returns whether an attempt that starts now would have the peer as a member."""
        has_others = self._roster.free > self._roster.size  # the usual case costs no look at all peers
        return peer.is_free and not (has_others and peer not in self._roster.ready())

    def _unmoved(self) -> Iterator[Peer]:
        moving = (self._roster.peers.get(ordinal) for ordinal in sorted(self._roster.moving))
        return (peer for peer in moving if peer is not None and self._roster.is_moving(peer))
