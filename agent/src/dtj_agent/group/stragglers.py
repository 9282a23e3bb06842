"""Slow ranks: those whose own work in a step takes longer than that of the others. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from dtj_agent.group.hang_guard import HangGuard
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Message, Now
from dtj_agent.group.restart_rules import RestartRule, first_match
from dtj_agent.group.roster import Roster
from dtj_agent.group.vitals import RankVitals
from dtj_contract import names
from dtj_contract.names import Reason

Json = Dict[str, Any]

RATIO = 1.3
"""To the median rank, from which on a rank is slow. A rank's own time is a median over 20 steps or more."""
RECOVERED_RATIO = 1.2
MIN_SECONDS = 0.005
"""A smaller difference is noise, whatever its ratio."""
LASTING_SECONDS = 60.0
"""A rank that has been slow for so long may be replaced by a rule."""
PAUSE_SECONDS = 3600.0
"""Between two replacements of one rank: if it is slow again, another node is no cure."""
GRACE_SECONDS = 25.0
"""SIGTERM to SIGKILL of a group that is stopped for a slow rank, so that a trainer can save."""


class StragglerWatch:
    """Keeps the slow ranks of the running attempt in `slow`: rank -> ratio to the median."""

    def __init__(self) -> None:
        self.slow: Dict[int, float] = {}

    def look(self, ranks: Dict[int, RankVitals]) -> List[int]:
        """Takes the vitals of all running ranks. Returns the ranks that have become slow since the last call."""
        own = {rank: each.own for rank, each in ranks.items() if each.own is not None}
        if len(own) < 2:
            self.slow = {}
            return []
        # Of two ranks, the faster one is the measure.
        median = sorted(own.values())[(len(own) - 1) // 2]
        before, self.slow = self.slow, {}
        for rank, seconds in sorted(own.items()):
            ratio = seconds / median if median > 0 else 1.0
            least = RECOVERED_RATIO if rank in before else RATIO
            if ratio > least and seconds - median >= MIN_SECONDS:
                self.slow[rank] = ratio
        return [rank for rank in self.slow if rank not in before]


class SlowRanks:
    """Reports each rank of the running attempt that becomes slow, and finds the one that a rule replaces."""

    def __init__(self, rules: Tuple[RestartRule, ...], roster: Roster, guard: HangGuard) -> None:
        self._rules = rules
        self._roster = roster
        self._guard = guard
        self._watch = StragglerWatch()
        self._since: Dict[int, float] = {}
        self._replaced: Dict[int, float] = {}
        """When each rank was last replaced."""

    def started(self) -> None:
        """Forgets the ranks of the attempt before."""
        self._watch, self._since = StragglerWatch(), {}

    def look(self, attempt: int, history: History, now: Now) -> Optional[Json]:
        """Adds an event for each rank that has become slow; returns the failure that a rule makes of one."""
        new = self._watch.look(self._guard.ranks(now))
        self._since = {rank: self._since.get(rank, now.mono) for rank in self._watch.slow}
        for rank, ratio in self._slowest():
            failure = self._failure(rank, ratio, attempt, now)
            if failure is None:
                continue
            if rank in new:
                history.event("Warning", Reason.STRAGGLER, failure["message"], now.wall)
            lasts = now.mono - self._since[rank] >= LASTING_SECONDS
            if lasts and not self._was_replaced(rank, history, now) and self._is_ruled(failure):
                self._replaced[rank] = now.mono
                return failure
        return None

    def rows(self) -> List[Message]:
        """Returns the slowest ranks: rank, pod, node, and ratio to the median rank."""
        found = [(rank, ratio, self._roster.peers.get(self._guard.ordinal(rank))) for rank, ratio in self._slowest()]
        return [
            {"rank": rank, "pod": peer.pod, "node": peer.node, "ratio": round(ratio, 2)}
            for rank, ratio, peer in found
            if peer is not None
        ]

    def _slowest(self) -> List[Tuple[int, float]]:
        return sorted(self._watch.slow.items(), key=lambda item: -item[1])[: names.MAX_STRAGGLERS]

    def _failure(self, rank: int, ratio: float, attempt: int, now: Now) -> Optional[Json]:
        """Returns the slow rank as a failure; None if its pod is away."""
        peer = self._roster.peers.get(self._guard.ordinal(rank))
        if peer is None:
            return None
        where = "%s on node %s" % (peer.pod, peer.node) if peer.node else peer.pod
        text = "rank %d (%s) takes %.1f times as long for its own work in a step as the median rank"
        return {
            "attempt": attempt, "rank": rank, "ordinal": peer.ordinal, "pod": peer.pod, "node": peer.node,
            "exitCode": None, "signal": None, "reason": Reason.STRAGGLER, "message": text % (rank, where, ratio),
            "time": now.wall, "logTail": "",
        }  # fmt: skip

    def _is_ruled(self, failure: Json) -> bool:
        """Returns whether a rule that names Straggler decides: a slow rank matches no other rule by chance."""
        rule = first_match(self._rules, failure)
        return rule is not None and Reason.STRAGGLER in (rule.reasons or ())

    def _was_replaced(self, rank: int, history: History, now: Now) -> bool:
        """Returns whether the rank was replaced within the pause, also by an earlier coordinator."""
        own = self._replaced.get(rank, now.mono - PAUSE_SECONDS)
        listed = [number(f.get("time")) for f in history.failures if _is_of(f, rank)]
        return now.mono - own < PAUSE_SECONDS or any(now.wall - time < PAUSE_SECONDS for time in listed)


def _is_of(failure: Json, rank: int) -> bool:
    return bool(failure.get("reason") == Reason.STRAGGLER and failure.get("rank") == rank)
