"""One attempt: its members, their ranks, and what became of each. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set

from dtj_agent.group import root_cause
from dtj_agent.group.effects import Outbox
from dtj_agent.group.history import History
from dtj_agent.group.messages import RUNNING, Now
from dtj_agent.group.node_ranks import assign_node_ranks
from dtj_agent.group.root_cause import Json, Loss
from dtj_agent.group.roster import Peer
from dtj_contract import names
from dtj_contract.names import Reason
from dtj_contract.operator_message import LostPod


class Attempt:
    """Attempt 0 has no members: nothing was started yet."""

    def __init__(self, number: int, ordinals: List[int], processes: int) -> None:
        self.number = number
        self.node_ranks = assign_node_ranks(ordinals)
        """The node rank of each member, by ordinal."""
        self.done: Set[int] = set()
        """Members whose workers have all exited with 0."""
        self.lost: Dict[int, Loss] = {}
        """Members that went away before they were done and are not back."""
        self._crashed: Dict[int, Loss] = {}
        """Members whose agents died and are back in their pods, for no reason that is known."""
        self._processes = processes
        self._remembered: Dict[int, int] = {}
        """The node ranks of an attempt that another coordinator started, whose members this one has not chosen."""
        self._evidence: List[Json] = []
        """Workers that failed, in order of arrival."""
        self._blamed: Optional[Json] = None

    @classmethod
    def with_members(cls, peers: List[Peer], number: int, processes: int) -> Attempt:
        return cls(number, [peer.ordinal for peer in peers], processes)

    @classmethod
    def remembered(cls, history: History, processes: int) -> Attempt:
        """Returns the last attempt of a history, which another coordinator may have started."""
        attempt = cls(history.attempt, [], processes)
        attempt._remembered = assign_node_ranks(history.members.ordinals())
        return attempt

    def start(
        self, peers: List[Peer], history: History, leadership: Json, outbox: Outbox, lists_members: bool = False
    ) -> None:
        """Starts the workers of all members.

        The first of `peers`, which are in the order of their ordinals, is the master. `leadership`:
        the fields of the message that name the coordinator. `lists_members`: whether the message
        holds the addresses of all, which makes it longer the more members there are.
        """
        master = peers[0]
        if lists_members:
            leadership = {**leadership, "members": [[peer.address, peer.port] for peer in peers]}
        memory = history.to_json()  # encoded once for all of them
        for peer in peers:
            peer.state, peer.attempt = RUNNING, self.number
            outbox.send(peer.conn, {
                "type": "start", "attempt": self.number, "nodeRank": self.node_ranks[peer.ordinal], "nodes": len(peers),
                "masterAddr": master.address, "masterPort": master.port, "history": memory, **leadership,
            })  # fmt: skip

    @property
    def is_done(self) -> bool:
        return len(self.done) == len(self.node_ranks)

    @property
    def world_size(self) -> int:
        return len(self.node_ranks) * self._processes

    def needs(self, peer: Peer) -> bool:
        """Returns whether the attempt would break without the peer."""
        return peer.ordinal in self.node_ranks and peer.ordinal not in self.done

    def lose(self, peer: Peer, reason: str = Reason.POD_LOST, detail: str = "") -> None:
        loss = self._loss(peer.ordinal, peer.incarnation, peer.pod, peer.node, reason, detail)
        self.lost[peer.ordinal] = loss._replace(address=peer.address)

    def explain(self, lost: LostPod) -> Optional[int]:
        """Adds the reason of a loss, which Kubernetes knows; returns the ordinal, None if nothing is new."""
        for ordinal, loss in self.lost.items():
            if (loss.pod, loss.address, loss.reason) == (lost.pod, lost.address, Reason.POD_LOST):
                detail = " by its kubelet for what it used" if lost.own_fault else ""
                self.lost[ordinal] = loss._replace(reason=lost.reason, detail=detail, own_fault=lost.own_fault)
                return ordinal
        return None

    def explain_kill(self, kill: LostPod, now: Now) -> Optional[Json]:
        """Adds that a container was killed with its agent; returns its failure, None if nothing is new."""
        unexplained = ((self.lost, Reason.POD_LOST), (self._crashed, Reason.AGENT_CRASHED))
        for members, reason in unexplained:
            for ordinal, loss in members.items():
                if (loss.pod, loss.address, loss.reason) == (kill.pod, kill.address, reason):
                    members[ordinal] = loss._replace(reason=kill.reason)
                    return root_cause.loss_failure(ordinal, members[ordinal], self.number, now)
        return None

    def fail(self, peer: Peer, failures: List[Any]) -> None:
        """Adds the failed workers that a member reported."""
        for failure in failures:
            if root_cause.is_evidence(failure):
                tail = str(failure.get("logTail") or "")[-names.LOG_TAIL_BYTES :]  # thousands of members may fail
                self._evidence.append(dict(failure, logTail=tail, ordinal=peer.ordinal, pod=peer.pod, node=peer.node))

    def blame(self, failure: Json) -> None:
        """Adds the rank that the attempt is stopped for: workers that fail from now on fail of the stop."""
        self._blamed = failure

    def root_failure(self, progressed: bool, pod_lost: bool, now: Now) -> Optional[Json]:
        """Returns the root cause among the failed workers; None if no worker is to blame."""
        return self._blamed or root_cause.find(self._evidence, self.number, progressed, pod_lost, now)

    def loss_failures(self, now: Now) -> List[Json]:
        """Returns the lost members as failures."""
        return [root_cause.loss_failure(ordinal, loss, self.number, now) for ordinal, loss in sorted(self.lost.items())]

    def leader_failure(self, ordinal: int, pod: str, now: Now) -> Json:
        """Returns the loss of the pod that led the attempt, whose node only that pod knew."""
        return root_cause.loss_failure(ordinal, self._loss(ordinal, "", pod, "", Reason.POD_LOST), self.number, now)

    def return_failure(self, hello: Json, reason: str, now: Now) -> Json:
        """Returns the failure of a member that is back in its pod: its agent or connection had died."""
        loss = self._loss(hello["ordinal"], hello["incarnation"], hello["pod"], hello["node"], reason)
        if reason == Reason.NODE_LOST:
            loss = loss._replace(detail=", which has restarted", own_fault=True)
        if reason == Reason.AGENT_CRASHED:
            self._crashed[hello["ordinal"]] = loss._replace(address=hello["address"])
        return root_cause.loss_failure(hello["ordinal"], loss, self.number, now)

    def _loss(self, ordinal: int, incarnation: str, pod: str, node: str, reason: str, detail: str = "") -> Loss:
        ranks = self.node_ranks or self._remembered
        return Loss(incarnation, pod, node, ranks.get(ordinal, ordinal) * self._processes, reason, detail)
