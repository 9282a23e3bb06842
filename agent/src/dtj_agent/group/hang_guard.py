"""Follows the vitals of a running attempt, and gathers the evidence of a hang before it breaks. Pure.

    running --hang--> the members take stacks --all answered, STACKS_SECONDS over--> evidence

A step that arrives meanwhile takes the suspicion back.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from dtj_agent.group import culprit, hang_watch, vitals
from dtj_agent.group.hang_watch import Earlier, Hang, HangSettings
from dtj_agent.group.messages import DONE, Message, Now
from dtj_agent.group.roster import Peer
from dtj_agent.group.vitals import RankVitals
from dtj_contract import names
from dtj_contract.names import Reason

Json = Dict[str, Any]


class _Seen(NamedTuple):
    """The vitals of a member's ranks, and when they arrived."""

    rows: List[RankVitals]
    at: float

    def ranks(self, now: Now) -> Dict[int, RankVitals]:
        """Returns the vitals as old as they are by now, which only their ages follow."""
        since = now.mono - self.at
        return {row.rank: row._replace(age=row.age + since) for row in self.rows}


class Finding(NamedTuple):
    """A hang with its evidence. `failure` has the form that /status shows."""

    hang: Hang
    failure: Json


class HangGuard:
    """Guards one attempt after the other."""

    def __init__(self, settings: HangSettings) -> None:
        self._settings = settings
        self._world_size = 0
        self._seen: Dict[int, _Seen] = {}
        """By ordinal, so that the work for a message does not grow with the group."""
        self._earlier = Earlier()
        """Of all attempts, the running one too."""
        self._stacks: Dict[int, str] = {}
        self._asked: Optional[Set[int]] = None
        """The members whose stacks are missing; None: nothing is suspected."""
        self._ask_until = 0.0
        self._reported = self._hinted = False
        self._start_reported = False
        """A start that hangs was reported in this attempt; a rank that wakes now and then repeats no report."""

    def started(self, world_size: int) -> None:
        """Forgets the attempt before, but not its pauses and its start."""
        self._world_size = world_size
        self._seen, self._stacks, self._asked, self._reported = {}, {}, None, False
        self._hinted = self._start_reported = False

    def heard(self, peer: Peer, message: Message, now: Now) -> bool:
        """Takes the vitals and the stacks from a member's heartbeat.

        Returns whether to look for a hang at once, instead of at the next tick.
        """
        urgent = False
        if "ranks" in message:
            rows = vitals.parse(message["ranks"])
            self._seen[peer.ordinal] = _Seen(rows, now.mono)
            self._learn(
                longest=max((row.longest for row in rows), default=0.0),
                start=max((row.slowest_start for row in rows), default=0.0),
            )
            urgent = self.breaks and any(row.stopped >= hang_watch.STOPPED_SECONDS for row in rows)
        if "stacks" in message:
            self._stacks.update(vitals.parse_stacks(message["stacks"]))
            if self._asked is not None:
                self._asked.discard(peer.ordinal)
                urgent = urgent or not self._asked
        return urgent

    def ranks(self, now: Now) -> Dict[int, RankVitals]:
        """Returns the vitals of the running ranks."""
        return {rank: row for seen in self._seen.values() for rank, row in seen.ranks(now).items()}

    def ordinal(self, rank: int) -> int:
        """Returns the ordinal of the pod that a rank runs in; -1 if it is unknown."""
        found = (ordinal for ordinal, seen in self._seen.items() if any(row.rank == rank for row in seen.rows))
        return next(found, -1)

    def suspects(self, members: List[Peer], now: Now) -> bool:
        """Returns whether the members must take their stacks now; at most once for each suspicion."""
        hang = self._judge(members, now)
        if hang is None:
            self._asked = None
            self._reported = False
            return False
        if self._asked is not None or self._reported or (hang.kind == hang_watch.NO_START and self._start_reported):
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
        if self.breaks and hang.kind == hang_watch.NO_STEP and not self._settings.min_seconds:
            self._learn(longest=min(hang.seconds, hang_watch.LONGEST_LEARNT_SECONDS))
        if self.breaks:
            self._learn(spared=hang_watch.spared(self._settings, hang))
        self._start_reported = self._start_reported or hang.kind == hang_watch.NO_START
        failure = self._failure(hang, members, attempt, now)
        self._reported, self._stacks = True, {}
        return Finding(hang, failure)

    def hint(self, members: List[Peer], now: Now) -> str:
        """Returns, once in an attempt, what to do about a silence that no limit will end; "" if there is none."""
        ranks = self._running(members, now)
        silence = hang_watch.unbounded_silence(self._settings, ranks, self._earlier)
        if silence is None or self._hinted or len(ranks) < self._world_size:
            return ""
        self._hinted = True
        phase = next((each.phase for each in ranks.values() if each.phase in hang_watch.ANNOUNCED), "")
        where = "in the phase %s" % phase if phase else "before the first step"
        text = "no rank has shown a sign of life for %.0f s %s, which has no limit: set spec.progressDeadlineSeconds "
        return (text + "to restart such a group, or look at the stack of a rank (py-spy dump)") % (silence, where)

    @property
    def breaks(self) -> bool:
        """Whether a hang ends the attempt."""
        return self._settings.policy == hang_watch.RESTART

    def _judge(self, members: List[Peer], now: Now) -> Optional[Hang]:
        if any(peer.ordinal not in self._seen for peer in members if peer.state != DONE):
            # An agent of an older version, or the first second: only a stopped rank is certain.
            return hang_watch.stopped(self._settings, self._running(members, now))
        ranks = self._running(members, now)
        whole = len(ranks) == self._world_size
        return hang_watch.judge(self._settings, ranks, whole=whole, earlier=self._earlier)

    def _learn(self, longest: float = 0.0, start: float = 0.0, spared: float = 0.0) -> None:
        self._earlier = Earlier(*map(max, self._earlier, (longest, start, spared)))

    def _running(self, members: List[Peer], now: Now) -> Dict[int, RankVitals]:
        """Returns the vitals of the ranks whose pod is not done."""
        running = [self._seen[peer.ordinal] for peer in members if peer.state != DONE and peer.ordinal in self._seen]
        return {rank: row for seen in running for rank, row in seen.ranks(now).items()}

    # --- the evidence ---------------------------------------------------------------------------------------------

    def _failure(self, hang: Hang, members: List[Peer], attempt: int, now: Now) -> Json:
        places = {rank: culprit.place(stack) for rank, stack in self._stacks.items()}
        everyone = sorted(self._running(members, now))
        ranks = hang.ranks if hang.kind == hang_watch.STOPPED else culprit.suspects(everyone, places)
        if ranks == everyone:
            # Reports may be some steps behind, so a step is weaker evidence than a stack.
            ranks = hang.ranks or everyone
        rank = ranks[0]
        peer = next(peer for peer in members if peer.ordinal == self.ordinal(rank))
        stands = places[rank].line if rank in places else ""
        where = "%s on node %s" % (peer.pod, peer.node) if peer.node else peer.pod
        return {
            "attempt": attempt, "rank": rank, "ordinal": peer.ordinal, "pod": peer.pod, "node": peer.node,
            "exitCode": None, "signal": None, "reason": Reason.WORKER_HUNG,
            "message": _message(hang, ranks, len(everyone), where, stands), "time": now.wall, "logTail": "",
            "stack": culprit.shortened(self._stacks.get(rank, ""), names.MAX_STACK_CHARS),
        }  # fmt: skip


def _message(hang: Hang, ranks: List[int], running: int, where: str, stands: str) -> str:
    rank = "rank %d (%s)" % (ranks[0], where)
    stood = ": it is at %s" % stands if stands else ""
    others = _others(ranks[1:])
    if hang.kind == hang_watch.STOPPED:
        return "%s has been stopped by a signal for %.1f s%s" % (rank, hang.seconds, others)
    if hang.kind == hang_watch.NO_LIFE:
        return "%s has shown no sign of life for %.0f s%s%s" % (rank, hang.seconds, stood, others)
    if hang.kind == hang_watch.NO_START:
        text = "no rank has made its first step for %.0f s; the slowest start so far took %.3g s; "
        who = "the others wait for %s%s%s" % (rank, stood, others)
        if len(ranks) == running:
            who = "no rank stands out, e.g. %s%s" % (rank, stood)
        return text % (hang.seconds, hang.start) + who
    usual = "" if hang.usual is None else ", usually one takes %.3g s" % hang.usual
    if len(ranks) == running > 1:
        text = "no rank has made a step for %.0f s%s; no rank stands out, e.g. %s%s"
        return text % (hang.seconds, usual, rank, stood)
    return "no step for %.0f s%s: the others wait for %s%s%s" % (hang.seconds, usual, rank, stood, others)


def _others(ranks: Iterable[int]) -> str:
    named = ["%d" % rank for rank in ranks]
    shown = ", ".join(named[:8]) + (" and %d more" % (len(named) - 8) if len(named) > 8 else "")
    return "; the same holds for rank%s %s" % ("" if len(named) == 1 else "s", shown) if named else ""
