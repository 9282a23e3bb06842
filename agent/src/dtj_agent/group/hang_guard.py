"""Follows the vitals of a running attempt, and gathers the evidence of a hang before it breaks. Pure.

    running --hang--> the members take stacks --all answered, STACKS_SECONDS over--> evidence

A step that arrives meanwhile takes the suspicion back.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from dtj_agent.group import culprit, hang_watch, vitals
from dtj_agent.group.hang_watch import Hang, HangSettings
from dtj_agent.group.messages import DONE, Message, Now
from dtj_agent.group.roster import Peer
from dtj_agent.group.vitals import RankVitals
from dtj_contract import names
from dtj_contract.names import Reason

Json = Dict[str, Any]


class _Seen(NamedTuple):
    """The vitals of a rank, and when they arrived."""

    vitals: RankVitals
    at: float
    ordinal: int

    def now(self, now: Now) -> RankVitals:
        """Returns the vitals as old as they are by now, which only their ages follow."""
        return self.vitals._replace(age=self.vitals.age + now.mono - self.at)


class Finding(NamedTuple):
    """A hang with its evidence. `failure` has the form that /status shows."""

    hang: Hang
    failure: Json


class HangGuard:
    """Guards one attempt after the other."""

    def __init__(self, settings: HangSettings, processes: int) -> None:
        self._settings = settings
        self._processes = processes
        self._seen: Dict[int, _Seen] = {}
        self._longest = 0.0
        """The longest unannounced pause of any attempt."""
        self._stacks: Dict[int, str] = {}
        self._asked: Optional[Set[int]] = None
        """The members whose stacks are missing; None: nothing is suspected."""
        self._ask_until = 0.0
        self._reported = False

    def started(self) -> None:
        """Forgets the attempt before, but not its pauses."""
        self._seen, self._stacks, self._asked, self._reported = {}, {}, None, False

    def heard(self, peer: Peer, message: Message, now: Now) -> bool:
        """Takes the vitals and the stacks from a member's heartbeat.

        Returns whether to look for a hang at once, instead of at the next tick.
        """
        urgent = "stacks" in message
        if "ranks" in message:
            rows = vitals.parse(message["ranks"])
            self._seen = {rank: seen for rank, seen in self._seen.items() if seen.ordinal != peer.ordinal}
            self._seen.update({row.rank: _Seen(row, now.mono, peer.ordinal) for row in rows})
            self._longest = max([self._longest, *(row.longest for row in rows)])
            urgent = urgent or any(row.stopped for row in rows)
        if "stacks" in message:
            self._stacks.update(vitals.parse_stacks(message["stacks"]))
            if self._asked is not None:
                self._asked.discard(peer.ordinal)
        return urgent

    def ranks(self, now: Now) -> Dict[int, RankVitals]:
        """Returns the vitals of the running ranks."""
        return {rank: seen.now(now) for rank, seen in self._seen.items()}

    def ordinal(self, rank: int) -> int:
        """Returns the ordinal of the pod that a rank runs in; -1 if it is unknown."""
        return self._seen[rank].ordinal if rank in self._seen else -1

    def suspects(self, members: List[Peer], now: Now) -> bool:
        """Returns whether the members must take their stacks now; at most once for each suspicion."""
        hang = self._judge(members, now)
        if hang is None:
            self._asked = None
            self._reported = False
            return False
        if self._asked is not None or self._reported:
            return False
        self._stacks = {}
        # A stopped rank can't answer, and needs no stack: the signal is the cause.
        self._asked = set() if hang.kind == hang_watch.STOPPED else {peer.ordinal for peer in members}
        self._ask_until = now.mono + names.STACKS_SECONDS
        return bool(self._asked)

    def finding(self, members: List[Peer], attempt: int, now: Now) -> Optional[Finding]:
        """Returns the hang, once, when its evidence is complete or its time is over."""
        if self._asked is None or (self._asked and now.mono < self._ask_until):
            return None
        hang, self._asked = self._judge(members, now), None
        if hang is None:
            return None
        self._reported = True
        return Finding(hang, self._failure(hang, members, attempt, now))

    @property
    def breaks(self) -> bool:
        """Whether a hang ends the attempt."""
        return self._settings.policy == hang_watch.RESTART

    def _judge(self, members: List[Peer], now: Now) -> Optional[Hang]:
        heard = {seen.ordinal for seen in self._seen.values()}
        running = [peer for peer in members if peer.state != DONE]
        if any(peer.ordinal not in heard for peer in running):
            # An agent of an older version, or the first second: only a stopped rank is certain.
            return hang_watch.stopped(self._settings, self.ranks(now))
        kept = {peer.ordinal for peer in running}
        ranks = {rank: seen.now(now) for rank, seen in self._seen.items() if seen.ordinal in kept}
        whole = len(ranks) == len(members) * self._processes
        return hang_watch.judge(self._settings, ranks, whole=whole, longest=self._longest)

    # --- the evidence ---------------------------------------------------------------------------------------------

    def _failure(self, hang: Hang, members: List[Peer], attempt: int, now: Now) -> Json:
        places = {rank: culprit.place(stack) for rank, stack in self._stacks.items()}
        ranks = hang.ranks or culprit.suspects(sorted(self._seen), places)
        rank = ranks[0]
        peer = next(peer for peer in members if peer.ordinal == self._seen[rank].ordinal)
        stands = places[rank].line if rank in places else ""
        where = "%s on node %s" % (peer.pod, peer.node) if peer.node else peer.pod
        return {
            "attempt": attempt, "rank": rank, "ordinal": peer.ordinal, "pod": peer.pod, "node": peer.node,
            "exitCode": None, "signal": None, "reason": Reason.WORKER_HUNG,
            "message": _message(hang, ranks, len(self._seen), where, stands), "time": now.wall, "logTail": "",
            "stack": self._stacks.get(rank, "")[: names.MAX_STACK_CHARS],
        }  # fmt: skip


def _message(hang: Hang, ranks: List[int], running: int, where: str, stands: str) -> str:
    rank = "rank %d (%s)" % (ranks[0], where)
    stood = ": it is at %s" % stands if stands else ""
    others = _others(ranks[1:])
    if hang.kind == hang_watch.STOPPED:
        return "%s has been stopped by a signal for %.1f s%s" % (rank, hang.seconds, others)
    if hang.kind == hang_watch.NO_LIFE:
        return "%s has shown no sign of life for %.0f s%s%s" % (rank, hang.seconds, stood, others)
    usual = "" if hang.usual is None else ", usually one takes %.3g s" % hang.usual
    if len(ranks) == running > 1:
        text = "no rank has made a step for %.0f s%s; no rank stands out, e.g. %s%s"
        return text % (hang.seconds, usual, rank, stood)
    return "no step for %.0f s%s: the others wait for %s%s%s" % (hang.seconds, usual, rank, stood, others)


def _others(ranks: Iterable[int]) -> str:
    named = ["%d" % rank for rank in ranks]
    shown = ", ".join(named[:8]) + (" and %d more" % (len(named) - 8) if len(named) > 8 else "")
    return "; the same holds for rank%s %s" % ("" if len(named) == 1 else "s", shown) if named else ""
