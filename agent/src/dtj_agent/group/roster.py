"""The connected agents: which could be in the next attempt, and which are missing. Pure.

The roster follows each change of a peer's state, so that no message costs a look at all peers.
"""

from __future__ import annotations

from typing import Collection, Dict, List, Optional

from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import number
from dtj_agent.group.members import Members
from dtj_agent.group.messages import DONE, FINISHED, IDLE, STOPPING, STUCK, Message, Now

MAX_NAMED = 8
"""Pods that a message lists by name."""


def listed(names: List[str], count: int) -> str:
    """Returns the first of `count` names as `a, b and 3 more`."""
    more = ["and %d more" % (count - MAX_NAMED)] if count > MAX_NAMED else []
    return ", ".join(names[:MAX_NAMED] + more)


class Peer:
    """A connected agent, as its last hello described it.

    Its roster notices when `state` or `leaving` changes.
    """

    def __init__(self, conn: int, hello: Message, now: Now) -> None:
        self.conn = conn
        self.ordinal: int = hello["ordinal"]
        self.incarnation: str = hello["incarnation"]
        self.pod: str = hello["pod"]
        self.node: str = hello["node"]
        self.address: str = hello["address"]
        self.port: int = hello["port"]
        self.attempt: int = hello["attempt"]
        self.promised: int = hello.get("promised") or 0
        """The greatest attempt number that it has promised to a coordinator."""
        self.has_past = self.promised > 0 or number(hello["history"].get("attempt")) > 0
        """Whether it knew before it joined that somebody has started an attempt, or was about to."""
        self.remembers: bool = hello.get("remembers") is not False
        """Whether it has kept its promises (witnesses.py). Agents of older versions do not report it."""
        self.since = self.heard = now.mono
        self.index: Optional[PeerIndex] = None
        """The index of the roster that the peer is in."""
        self.warming = False
        """Its warm process still imports, as far as known."""
        self._state: str = hello["state"]
        self._leaving = False

    @property
    def state(self) -> str:
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._change(state, self._leaving)

    @property
    def leaving(self) -> bool:
        """Whether its pod is terminating."""
        return self._leaving

    @leaving.setter
    def leaving(self, leaving: bool) -> None:
        self._change(self._state, leaving)

    @property
    def is_free(self) -> bool:
        """Whether it could be in an attempt that starts now."""
        return self._state in (IDLE, DONE) and not self._leaving

    def hears(self, message: Message, now: Now) -> None:
        """Notes that its agent lives and, from a heartbeat, whether its warm process still imports."""
        self.heard = now.mono
        if message["type"] == "beat":
            self.warming = message.get("warming") is True

    def _change(self, state: str, leaving: bool) -> None:
        if self.index is not None:
            self.index.drop(self)
        self._state, self._leaving = state, leaving
        if self.index is not None:
            self.index.add(self)


class PeerIndex:
    """Finds the connected agents by state."""

    def __init__(self) -> None:
        self.free: Dict[int, Peer] = {}
        """The agents that could be in an attempt that starts now, by ordinal."""
        self._by_state: Dict[str, Dict[int, Peer]] = {}

    def add(self, peer: Peer) -> None:
        self._by_state.setdefault(peer.state, {})[peer.ordinal] = peer
        if peer.is_free:
            self.free[peer.ordinal] = peer

    def drop(self, peer: Peer) -> None:
        self._by_state[peer.state].pop(peer.ordinal)
        self.free.pop(peer.ordinal, None)

    def in_state(self, state: str) -> Dict[int, Peer]:
        """Returns the agents in `state`, by ordinal."""
        return self._by_state.get(state, {})


class Roster:
    """Keeps the connected agents in `peers`, by ordinal."""

    def __init__(self, spec: GroupSpec) -> None:
        self.peers: Dict[int, Peer] = {}
        self.without_outcome: Dict[int, Peer] = {}
        """The agents that were not sent the outcome yet, by ordinal."""
        self.forgetful: Dict[int, Peer] = {}
        """The agents that remember nothing, by ordinal."""
        self.has_past = False
        """Whether any agent that has joined knew that the job has a past."""
        self.greatest_attempt = 0
        """The greatest attempt that an agent was started for before it joined."""
        self.size = spec.replicas
        """Members of an attempt that starts now (formation.py)."""
        self.pods = spec.replicas + spec.spares
        """Pods of the job, by the newest size that is wanted."""
        self.last = Members()
        """The members of the last attempt."""
        self.greatest_promise = 0
        """The greatest number that an agent had promised before it joined."""
        self.moving: Dict[int, str] = {}
        """Ordinals and incarnations of the pods that are to be replaced on other nodes (moving_pod.py)."""
        self._spec = spec
        self._by_conn: Dict[int, Peer] = {}
        self._index = PeerIndex()
        self._left: Dict[int, float] = {}
        """Monotonic time at which the last connection of an ordinal ended."""

    def add(self, peer: Peer) -> None:
        self.peers[peer.ordinal] = self.without_outcome[peer.ordinal] = self._by_conn[peer.conn] = peer
        self.has_past = self.has_past or peer.has_past
        self.greatest_attempt = max(self.greatest_attempt, peer.attempt)
        self.greatest_promise = max(self.greatest_promise, peer.promised)
        peer.index = self._index
        self._index.add(peer)
        if not peer.remembers:
            self.forgetful[peer.ordinal] = peer

    def taught(self, peer: Peer) -> None:
        """Notes that the agent remembers from now on."""
        peer.remembers = True
        self.forgetful.pop(peer.ordinal, None)

    def remove(self, peer: Peer, now: Now) -> None:
        del self.peers[peer.ordinal], self._by_conn[peer.conn]
        self.without_outcome.pop(peer.ordinal, None)
        self.forgetful.pop(peer.ordinal, None)
        self._index.drop(peer)
        peer.index = None
        self._left[peer.ordinal] = now.mono

    def left_at(self, ordinal: int, now: Now) -> float:
        """Returns the monotonic time at which an agent left; now if it is still there."""
        return now.mono if ordinal in self.peers else self._left.get(ordinal, now.mono)

    def unfinished(self, but: int) -> int:
        """Returns the number of agents, but for one ordinal, that have not confirmed the outcome."""
        finished = self.in_state(FINISHED)
        return len(self.peers) - len(finished) - (but in self.peers and but not in finished)

    def by_conn(self, conn: int) -> Optional[Peer]:
        return self._by_conn.get(conn)

    def in_state(self, state: str) -> Dict[int, Peer]:
        """Returns the agents in `state`, by ordinal."""
        return self._index.in_state(state)

    @property
    def free(self) -> int:
        """The number of agents that could be in an attempt that starts now."""
        return len(self._index.free)

    @property
    def first(self) -> int:
        """The lowest ordinal of an agent that could be in an attempt that starts now; there must be one."""
        return min(self._index.free)

    def free_peers(self) -> List[Peer]:
        """Returns the agents that could be in an attempt that starts now, by ordinal."""
        return [peer for _, peer in sorted(self._index.free.items())]

    def has_broken(self, attempt: int) -> bool:
        """Returns whether the workers of any agent here were in `attempt` and have not completed it."""
        broken = (peer for state in (IDLE, STOPPING, STUCK) for peer in self.in_state(state).values())
        return attempt > 0 and any(peer.attempt == attempt for peer in broken)

    def has_completed(self, attempt: int) -> bool:
        """Returns whether the workers of any agent here have all ended `attempt` with 0."""
        return attempt > 0 and any(peer.attempt == attempt for peer in self.in_state(DONE).values())

    @property
    def is_whole(self) -> bool:
        """Whether an attempt could start now."""
        return self.free >= self.size

    def is_majority(self, ordinals: Collection[int]) -> bool:
        """Returns whether no other majority can be without these; ordinal 0 decides between two halves."""
        twice = 2 * len(ordinals)
        return twice > self.pods or (twice == self.pods and 0 in ordinals)

    def ready(self) -> List[Peer]:
        """Returns the members of an attempt that starts now, by ordinal, of the agents that are free and stay.

        Members of the last attempt come first, because their memory holds the newest state. A pod beyond
        the wanted number is about to be deleted, so it comes last, after those that are to move.
        """
        last = set(self.last.ordinals())
        order = sorted(
            self.free_peers(),
            key=lambda peer: (peer.ordinal >= self.pods, self.is_moving(peer), peer.ordinal not in last),
        )
        return sorted(order[: self.size], key=lambda peer: peer.ordinal)

    def is_moving(self, peer: Peer) -> bool:
        """Returns whether its pod is to be replaced on another node."""
        return self.moving.get(peer.ordinal) == peer.incarnation

    def missing(self) -> List[int]:
        """Returns the ordinals that are away while too few are there for an attempt; spares too."""
        if self.is_whole:
            return []
        return [ordinal for ordinal in range(self.pods) if ordinal not in self._index.free]

    def waiting(self, now: Now) -> str:
        """Returns `waiting for digits-1 (left 12 s ago), ...`; "" if no agent is missing."""
        missing = self.missing()
        named = ["%s-%d (%s)" % (self._spec.job, ordinal, self._why(ordinal, now)) for ordinal in missing[:MAX_NAMED]]
        return "waiting for " + listed(named, len(missing)) if missing else ""

    def _why(self, ordinal: int, now: Now) -> str:
        peer = self.peers.get(ordinal)
        if peer is None and ordinal in self._left:
            return "left %.0f s ago" % (now.mono - self._left[ordinal])
        if peer is None:
            return "never seen"
        if peer.state == STUCK:
            return "its workers can't be killed; its pod must be replaced"
        return "its pod is terminating" if peer.leaving else "its workers are being stopped"
