"""Decides which agents form the next attempt, and when a running attempt is resized. Pure.

    enough agents for the wanted size               start now: the last members, then the lowest ordinals
    fewer, and the job is not elastic               wait
    fewer, but as many as the last attempt had      start now, with all of them
    fewer still                                     wait for `ElasticLimits.wait`, then start with all of them,
                                                    if they are `least` or more

A running attempt that is smaller than wanted grows, and one that is larger shrinks: the coordinator
stops it with the grace of a terminating pod, so that a trainer can save, right after a checkpoint
where the script writes any.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from dtj_agent.group.attempt import Attempt
from dtj_agent.group.effects import Outbox
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.members import Members
from dtj_agent.group.messages import DONE, Now
from dtj_agent.group.recovery_timer import IN_PLACE, POD, SPARE, RecoveryTimer
from dtj_agent.group.roster import Peer, Roster, listed
from dtj_agent.group.witnesses import Witnesses
from dtj_contract import names
from dtj_contract.names import Reason
from dtj_contract.operator_message import GroupSize

GATHER_SECONDS = 2.0
"""For which a new coordinator gathers in any case. A spare that starts within them has not waited for the lost pod."""


class Sizes(NamedTuple):
    """Numbers of pods."""

    wanted: int
    usual: int
    """Of the last attempt, if it had fewer than wanted."""
    least: int
    """With which an attempt may start."""


def startable(sizes: Sizes, free: int, is_over: bool) -> int:
    """Returns the size of an attempt that starts now with `free` agents; 0: the group waits.

    `is_over`: the wait for the missing agents is over.
    """
    if free >= sizes.wanted:
        return sizes.wanted
    if free >= sizes.least and (is_over or free >= sizes.usual):
        return free
    return 0


class Formation:
    """Sets the size of the group in `roster`, and keeps the times that this depends on."""

    def __init__(self, spec: GroupSpec, roster: Roster, witnesses: Witnesses, outbox: Outbox, now: Now) -> None:
        self._spec = spec
        self._roster = roster
        self._witnesses = witnesses
        self._outbox = outbox
        self._short_since: Optional[float] = now.mono
        """Since when the group can't be as large as it was; None: it can."""
        self._began = now.mono
        self.is_new = True
        """This coordinator has started no attempt."""
        self._has_waited = False
        """The next attempt could not start when its predecessor had ended."""
        self._wait_until = 0.0
        self._is_bound_explained = False
        self._ready_since: Dict[Peer, float] = {}
        """Agents that the running attempt could grow by, and since when."""
        self._due_since: Optional[float] = None
        """Since when the running attempt has the wrong size; None: the size is right."""
        self._due_mark: Any = None
        """The newest checkpoint at that time."""
        self._resized = float("-inf")

    @property
    def is_variable(self) -> bool:
        """Whether an agent may be in one attempt and not in the next."""
        return self._spec.spares > 0 or self._spec.elastic is not None

    def sizes(self, history: History) -> Sizes:
        """Returns the sizes that hold for the next attempt."""
        wanted = self._wanted(history)
        elastic = self._spec.elastic
        if elastic is None:
            return Sizes(wanted, wanted, wanted)
        usual = min(wanted, len(history.members) or wanted)
        return Sizes(wanted, usual, min(wanted, max(elastic.least, self._majority(wanted))))

    def _wanted(self, history: History) -> int:
        elastic = self._spec.elastic
        if elastic is None:
            return self._spec.replicas
        size = later_size(self._spec.size, history.size)
        return max(elastic.least, min(size.replicas, elastic.most or size.replicas))

    def _majority(self, wanted: int) -> int:
        """Returns the least number of agents that can't be outnumbered by those that are away.

        A lease fences the others; without a volume there is none.
        """
        return 0 if self._spec.has_volume else (wanted + self._spec.spares) // 2 + 1

    def take_size(self, size: Optional[GroupSize], history: History) -> None:
        """Takes the size that the operator hands over, if it is later than the one that holds."""
        current = later_size(self._spec.size, history.size)
        if self._spec.elastic is None or size is None or size.generation <= current.generation:
            return
        history.size = size
        history.revision += 1
        if size.replicas != current.replicas:
            self._outbox.log("the job wants %d pods now, not %d" % (size.replicas, current.replicas))

    def members(self, history: History) -> List[int]:
        """Returns the ordinals of the last attempt's members."""
        return history.members.ordinals() or list(range(self._spec.replicas))

    def have_done(self, history: History) -> bool:
        """Returns whether the workers of all members of the last attempt have exited with 0."""
        done = self._roster.in_state(DONE)
        if len(done) < (len(history.members) or self._spec.replicas):
            return False
        return all(ordinal in done and done[ordinal].attempt == history.attempt for ordinal in self.members(history))

    # --- the group gathers ----------------------------------------------------------------------------------------

    def settled(self, lost: Iterable[int], now: Now) -> None:
        """Remembers when the lost pods had gone: the group waits for them from then on.

        A pod that terminates can't be back before its end, which its workers may use to save.
        """
        self._short_since = min((self._roster.left_at(ordinal, now) for ordinal in lost), default=None)

    def gather(self, history: History, now: Now) -> None:
        """Sets the size that an attempt would have which starts now."""
        sizes = self.sizes(history)
        free = self._roster.free
        if free < sizes.usual:
            self._has_waited = True
            if self._short_since is None:
                self._short_since = now.mono
        elastic = self._spec.elastic
        is_over = False
        if elastic is not None and self._short_since is not None:
            wait = elastic.wait if history.attempt else max(elastic.wait, names.FIRST_START_SECONDS)
            self._wait_until = self._short_since + wait
            is_over = now.mono >= self._wait_until
        self._roster.pods, self._roster.last = sizes.wanted + self._spec.spares, history.members
        self._roster.size = startable(sizes, free, is_over) or sizes.wanted
        if not self._may_decide(history, now):
            self._roster.size = max(self._roster.size, free + 1)
        if is_over and elastic is not None and elastic.least <= free < sizes.least and not self._is_bound_explained:
            self._is_bound_explained = True
            text = "%d of %d pods are no majority: without a checkpoint volume the group needs %d to continue"
            self._outbox.log(text % (free, self._roster.pods, sizes.least))

    def _may_decide(self, history: History, now: Now) -> bool:
        """Returns whether enough agents have joined to know the newest attempt, and that it has not succeeded.

        Agents that were away then, and spares that were lost before, know neither. An agent whose
        workers have completed the attempt may have missed that all the others have too.
        """
        pods, joined = self._roster.pods, len(self._roster.peers)
        # A pod that has been scaled away may still be there, and know more.
        if joined >= max(pods, self._spec.replicas + self._spec.spares):
            return True
        waited = now.mono - self._began
        if 2 * joined > pods and self._roster.has_broken(history.attempt):
            return True
        if 2 * joined <= pods or not self._witnesses.are_majority(self._roster.peers.keys(), now):
            # A lease fences the others, but holds no history.
            return self._spec.has_volume and (not self.is_new or waited >= names.FIRST_START_SECONDS)
        may_be_over = self._roster.has_completed(history.attempt)
        return not self.is_new or waited >= (names.FIRST_START_SECONDS if may_be_over else names.TAKEOVER_SECONDS)

    def waiting(self, history: History, now: Now) -> str:
        """Returns which agents the group waits for, and how long an elastic group does; "" if none is missing."""
        text, elastic = self._roster.waiting(now), self._spec.elastic
        if not text or elastic is None:
            return text
        sizes, free = self.sizes(history), self._roster.free
        if free < sizes.least:
            return "%s; %d are needed, and %d of them are there" % (text, sizes.least, free)
        return "%s; continuing with %d in %.0f s" % (text, free, max(0.0, self._wait_until - now.mono))

    def starting(self, members: List[Peer], recovery: Optional[RecoveryTimer], history: History, now: Now) -> None:
        """Notes the members of the attempt that starts, and reports what has changed since the last one."""
        before, after = history.members.ordinals(), [peer.ordinal for peer in members]
        came = self._named([ordinal for ordinal in after if ordinal not in set(before)])
        went = self._named([ordinal for ordinal in before if ordinal not in set(after)])
        wanted = self._wanted(history)
        if recovery is not None and before and recovery.kind in (IN_PLACE, POD) and came and went:
            text = "%s, warm and idle until now, took the place of %s" % (came, went)
            history.event("Normal", Reason.SPARE_USED, text, now.wall)
            has_waited = now.mono >= self._began + GATHER_SECONDS if self.is_new else self._has_waited
            if not has_waited and len(after) >= len(before):
                recovery.kind = SPARE
        if recovery is not None and before:
            recovery.sizes = len(before), len(after)
        if before and len(after) > len(before):
            text = "the group has grown from %d to %d pods, by %s" % (len(before), len(after), came)
            history.event("Normal", Reason.GROUP_GROWN, text, now.wall)
        elif len(after) < (len(before) or wanted):
            without = ", without %s" % went if went else ""
            text = "the group trains with %d pods instead of %d%s" % (len(after), len(before) or wanted, without)
            history.event("Warning" if len(after) < wanted else "Normal", Reason.GROUP_SHRUNK, text, now.wall)
        history.members = Members.of(after)
        self.is_new = False
        self._short_since, self._has_waited, self._due_since = None, False, None
        self._ready_since = {}

    def _named(self, ordinals: List[int]) -> str:
        pods = ["%s-%d" % (self._spec.job, ordinal) for ordinal in ordinals]
        return listed(pods, len(pods))

    # --- a running attempt is resized -----------------------------------------------------------------------------

    def due(self, attempt: Attempt, history: History, now: Now) -> str:
        """Returns why the running attempt must be stopped now to get another size; "" if it must not."""
        size = len(attempt.node_ranks)
        wanted = size if self._spec.elastic is None or attempt.done else self._wanted(history)
        grows = wanted > size and self._may_grow(attempt, wanted, now)
        if wanted >= size and not grows:
            self._due_since = None
            return ""
        mark = _newest_checkpoint(history)
        if self._due_since is None:
            self._due_since, self._due_mark = now.mono, mark
        longest = names.GROW_SECONDS if grows else names.SCALE_DOWN_SECONDS
        saves = self._spec.has_volume and mark != NO_CHECKPOINT
        if saves and mark == self._due_mark and now.mono < self._due_since + longest:
            return ""
        self._due_since = None
        if grows:
            self._resized = now.mono
        return Reason.GROUP_GROWN if grows else Reason.GROUP_SHRUNK

    def _may_grow(self, attempt: Attempt, wanted: int, now: Now) -> bool:
        """Returns whether agents are ready that the attempt can grow by, and no more are about to come."""
        spare = [peer for peer in self._roster.free_peers() if peer.ordinal not in attempt.node_ranks]
        self._ready_since = {peer: self._ready_since.get(peer, now.mono) for peer in spare if not peer.warming}
        times = [since for since in self._ready_since.values() if now.mono >= since + names.READY_SECONDS]
        if not times or now.mono < self._resized + names.RESIZE_SECONDS:
            return False
        assert self._spec.elastic is not None
        # Pods come up one after the other, and each growth stops the training.
        everyone = len(attempt.node_ranks) + len(times) >= wanted
        return everyone or now.mono >= min(times) + names.READY_SECONDS + self._spec.elastic.wait


NO_CHECKPOINT: Tuple[Any, Any] = (None, None)


def _newest_checkpoint(history: History) -> Tuple[Any, Any]:
    """Returns what changes with each checkpoint that a script reports, or file that it saves unreported."""
    return history.checkpoint, history.saved


def later_size(one: GroupSize, other: Optional[GroupSize]) -> GroupSize:
    """Returns the size of the later generation of the job."""
    return one if other is None or other.generation < one.generation else other
