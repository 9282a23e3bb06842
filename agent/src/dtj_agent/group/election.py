"""Finds the agent that coordinates the group. Pure.

    Searching --a leader answers or calls--> Following --link closed--> Searching
    Searching --no lower ordinal answers, or an agent joins here--> Leading --a better leader--> Following

A leader may turn out to be one of two: nothing is decided until one of them has gathered a whole
group and has the number of an attempt, which the lease or the members' promises grant to one only.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple, Union

SEARCHING, FOLLOWING, LEADING = "searching", "following", "leading"

STAGGER_SECONDS = 0.2
"""Without an answer for this long, the next peer is called too."""
LOWER_CALLS = 8
"""Lower ordinals that a search calls; the calls of a leader find everybody else."""
HIGHER_CALLS = 3
"""Higher ordinals that may know a leader, called before this agent leads."""
DEAD_SECONDS = 5.0
"""How long answers that name a leader are ignored after a call to it has failed."""
REJECTED_SECONDS = 1.0
"""Pause after the leader has closed the link without admitting this agent."""
MAX_TEXT = 256
MAX_NUMBER = 2**53


class Leader(NamedTuple):
    """An agent that leads, or may lead."""

    ordinal: int
    incarnation: str
    address: Tuple[str, int]
    epoch: int = 0
    """The first attempt that it has started in its leadership; 0: none yet."""
    attempt: int = 0
    """The greatest attempt that it knows of."""

    @property
    def rank(self) -> Tuple[int, int, int, str]:
        """Orders leaders: the one that knows the latest attempt stays, and the one that has started it."""
        return self.attempt, self.epoch, -self.ordinal, self.incarnation

    def to_json(self) -> Dict[str, Any]:
        return dict(self._asdict(), address=list(self.address))

    @classmethod
    def from_json(cls, data: Any) -> Optional[Leader]:
        """Returns the leader that another agent names; None if it names none."""
        if not isinstance(data, dict) or not isinstance(data.get("address"), (list, tuple)):
            return None
        numbers = [data.get(key) for key in ("ordinal", "epoch", "attempt")]
        texts = [data.get("incarnation"), *data["address"][:1]]
        if len(data["address"]) != 2 or not _is_number(data["address"][1]) or data["address"][1] > 65535:
            return None
        if not all(_is_number(value) for value in numbers) or not all(_is_text(value) for value in texts):
            return None
        ordinal, epoch, attempt = numbers
        return cls(ordinal, texts[0], (texts[1], data["address"][1]), epoch, attempt)  # type: ignore[arg-type]


class Call(NamedTuple):
    """Ask these peers for the leader."""

    ordinals: List[int]


class Dial(NamedTuple):
    """Leave the present leader, if any, and join this one."""

    leader: Leader


class Lead(NamedTuple):
    """Make a coordinator."""


class StepDown(NamedTuple):
    """Drop the coordinator; its members continue with `leader`, if that is known."""

    why: str
    leader: Optional[Leader]


Effect = Union[Call, Dial, Lead, StepDown]


class Election:
    """One agent's view. `me`: this agent; `pods`: how many agents there may be, spares too."""

    def __init__(self, me: Leader, pods: int) -> None:
        self.me = me
        self.state = SEARCHING
        self.leader: Optional[Leader] = None
        """The agent that is followed, or dialled; this agent while it leads."""
        self._pods = pods
        self._queue: List[List[int]] = []
        """Peers to call, in groups."""
        self._pending: Set[int] = set()
        """Peers that were called and have not answered."""
        self._next_at = 0.0
        self._dead: Dict[str, float] = {}
        """Until when an incarnation counts as dead, unless it answers or calls itself."""
        self._retry_at: Optional[float] = None
        self.is_leaving = False
        """This agent's pod terminates: it does not become the leader any more."""

    def knows(self, attempt: int, epoch: int) -> None:
        """Takes the greatest attempt known here, and the epoch of the present leader."""
        if self.state == LEADING:
            self.me = self.leader = self.me._replace(attempt=attempt, epoch=epoch)
        elif self.state == FOLLOWING and self.leader is not None:
            leader = self.leader
            self.leader = leader._replace(attempt=max(attempt, leader.attempt), epoch=max(epoch, leader.epoch))

    # --- events ---------------------------------------------------------------------------------------------------

    def start(self, now: float) -> List[Effect]:
        return self._search(now, -1)

    def tick(self, now: float) -> List[Effect]:
        """Handles the passing of time; called several times a second."""
        if self._retry_at is None or now < self._retry_at:
            return self._advance(now)
        self._retry_at = None
        return [Dial(self.me)] if self.state == LEADING else self._search(now, -1)

    def answered(self, peer: Leader, leader: Optional[Leader], now: float) -> List[Effect]:
        """Handles the answer of `peer`, which names a leader or none."""
        self._pending.discard(peer.ordinal)
        self._dead.pop(peer.incarnation, None)
        if self.state == FOLLOWING:
            return []
        if leader is not None and self._dead.get(leader.incarnation, now) > now:
            return self._check(peer, leader, now)
        if leader is not None and leader.address != self.me.address:  # else it names an agent that was here before
            return self._meet(leader)
        if self.state == SEARCHING and self.leader is None and leader is None and peer.ordinal < self.me.ordinal:
            return self._join(peer)
        return self._advance(now)

    def failed(self, ordinal: int, now: float) -> List[Effect]:
        """Handles that a called peer does not answer."""
        self._pending.discard(ordinal)
        return self._advance(now)

    def called(self, caller: Leader) -> List[Effect]:
        """Handles the call of an agent that leads."""
        self._dead.pop(caller.incarnation, None)
        return self._meet(caller)

    def asked_to_lead(self, ordinal: int, incarnation: str) -> List[Effect]:
        """Handles that an agent wants to join this one."""
        if self.state != SEARCHING:
            return []
        wait_for_each_other = self.leader is not None and self.leader.incarnation == incarnation
        if self.leader is None or (wait_for_each_other and self.me.ordinal < ordinal):
            return self._lead()
        return []

    def joined(self) -> None:
        """Handles the first message of the leader's coordinator: this agent is admitted."""
        if self.state == SEARCHING and self.leader is not None:
            self.state = FOLLOWING

    def redirected(self, leader: Leader, now: float) -> List[Effect]:
        """Handles that the agent on the other end of the link names another leader."""
        current = self.leader
        if self.state == LEADING or current is None or self._dead.get(leader.incarnation, now) > now:
            return []
        known = leader.address == self.me.address or leader.incarnation == current.incarnation
        return [] if known else self._join(leader)

    def closed(self, was_open: bool, now: float) -> List[Effect]:
        """Handles the end of the link to the leader, or of the attempt to open one."""
        if self.leader is None:
            return []
        if self.state == LEADING or (self.state == SEARCHING and was_open):
            # The leader does not admit this agent: its ordinal is taken by a twin that is alive, for example.
            self._retry_at = now + REJECTED_SECONDS
            self.leader = self.me if self.state == LEADING else None
            return []
        self._dead[self.leader.incarnation] = now + DEAD_SECONDS
        return self._search(now, self.leader.ordinal)

    def stepped_down(self, why: str, now: float) -> List[Effect]:
        """Handles the coordinator's decision to give up: a later attempt than its own was started."""
        if self.state != LEADING:
            return []
        return [StepDown(why, None), *self._search(now, -1)]

    # --- transitions ----------------------------------------------------------------------------------------------

    def _meet(self, other: Leader) -> List[Effect]:
        """Handles a leader that is alive: of two, the one with the greater rank stays."""
        mine = self.leader
        if mine is not None and (mine.incarnation == other.incarnation or other.rank <= mine.rank):
            return []
        if self.state == LEADING:
            return [StepDown("the agent of ordinal %d leads" % other.ordinal, other), *self._join(other)]
        return self._join(other)

    def _check(self, peer: Leader, lost: Leader, now: float) -> List[Effect]:
        """Calls a leader that this agent has lost, because `peer` still names it; asks the peer again meanwhile."""
        if self.state == SEARCHING and self.leader is None:
            self._next_at = now + STAGGER_SECONDS
            self._pending.add(lost.ordinal)
            if peer.ordinal < self.me.ordinal:
                self._pending.add(peer.ordinal)
                self._queue.insert(0, [peer.ordinal])
        return [Call([lost.ordinal])]

    def _search(self, now: float, lost: int) -> List[Effect]:
        """Begins to call peers. `lost`: the ordinal of the leader that is gone, -1 if none is."""
        self.state, self.leader, self._retry_at = SEARCHING, None, None
        self._dead = {incarnation: until for incarnation, until in self._dead.items() if until > now}
        lower = [ordinal for ordinal in range(self.me.ordinal) if ordinal != lost][:LOWER_CALLS]
        higher = [ordinal for ordinal in range(self.me.ordinal + 1, self._pods) if ordinal != lost][:HIGHER_CALLS]
        self._queue = [[ordinal] for ordinal in lower] + ([higher] if higher else [])
        self._pending = set()
        return self._advance(now)

    def _advance(self, now: float) -> List[Effect]:
        """Calls the next peers if those that were called do not answer, or leads after the last of them."""
        if self.state != SEARCHING or self.leader is not None or self._retry_at is not None:
            return []
        if self._pending and now < self._next_at:
            return []
        if not self._queue:
            return self._lead()
        ordinals = self._queue.pop(0)
        self._pending.update(ordinals)
        self._next_at = now + STAGGER_SECONDS
        return [Call(ordinals)]

    def _join(self, leader: Leader) -> List[Effect]:
        self.state, self.leader, self._retry_at = SEARCHING, leader, None
        return [Dial(leader)]

    def _lead(self) -> List[Effect]:
        if self.is_leaving:
            return []
        self.state, self.leader, self._retry_at = LEADING, self.me, None
        return [Lead(), Dial(self.me)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_NUMBER


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT
