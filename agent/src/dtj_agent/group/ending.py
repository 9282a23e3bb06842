"""Decides when a failure may end the job, and which agents may learn of it. Pure.

In a group of fixed size every attempt has all pods, so the next leader meets one that has ended. With
spares, or in an elastic group, others may start an attempt without the pods that have:

    a leader decides        at once where a majority follows it, else after a wait
    all agents here hold    they store the outcome, and none ends by it
    all agents here end     once a majority holds it, because every later leader meets one of them; or after a minute

A new leader that meets an outcome which is held ends the job by it, under the same conditions.
"""

from __future__ import annotations

from typing import Any, Optional, Set

from dtj_agent.group.effects import Outbox
from dtj_agent.group.formation import Formation
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.messages import Message, Now
from dtj_agent.group.outcome import FAILED, ended_attempt
from dtj_agent.group.roster import Peer, Roster
from dtj_agent.group.witnesses import Witnesses
from dtj_contract import names


class Ending:
    """Follows an outcome from the decision to the last agent of `roster`."""

    def __init__(
        self, spec: GroupSpec, formation: Formation, roster: Roster, witnesses: Witnesses, outbox: Outbox
    ) -> None:
        self._uid = spec.uid
        self._formation = formation
        self._roster = roster
        self._witnesses = witnesses
        self._outbox = outbox
        self._waits_since: Optional[float] = None
        """Since when a failure waits."""
        self._followed_since: Optional[float] = None
        """Since when a majority has followed this leader meanwhile."""
        self._end_at = 0.0
        """When the failure ends the job; 0: none waits."""
        self._hold_until = 0.0
        """Until when a failure that was decided waits for a majority that holds it."""
        self._asked: Set[Peer] = set()
        """The agents that were sent the outcome to hold."""
        self._holders: Set[int] = set()
        """The ordinals that hold the outcome."""
        self._found: Optional[Message] = None
        """The newest outcome that an agent here held when it joined."""

    def may_end(self, now: Now) -> bool:
        """Returns whether a failure may end the job now.

        A leader that is cut off from a majority waits for a minute, and one that has started nothing
        for ten seconds: others may continue the job, and it follows them as soon as it meets one.
        """
        peers = self._roster.peers
        if not self._formation.is_variable or len(peers) >= self._roster.pods:
            return True
        is_followed = self._witnesses.are_majority(peers.keys(), now)
        if is_followed and not self._formation.is_new:
            return True
        if self._waits_since is None:
            self._waits_since = now.mono
        if not is_followed:
            self._followed_since = None
        elif self._followed_since is None:
            self._followed_since = now.mono
        self._end_at = self._waits_since + names.FIRST_START_SECONDS
        if self._followed_since is not None:
            self._end_at = min(self._end_at, self._followed_since + names.TAKEOVER_SECONDS)
        return now.mono >= self._end_at

    def started(self) -> None:
        """Notes that the job continues with another attempt."""
        self._waits_since, self._followed_since, self._end_at = None, None, 0.0

    def describe(self, now: Now) -> str:
        """Returns that the job ends soon; "" if it does not."""
        left = self._end_at - now.mono
        return "the job fails in %.0f s, unless other pods continue it" % left if left > 0 else ""

    # --- an outcome that only some agents know --------------------------------------------------------------------

    def met(self, hello: Message, known_attempt: int) -> Optional[Message]:
        """Returns the outcome by which an agent that has joined has ended, unless the job has continued after it.

        Notes the one that it holds. `known_attempt`: the greatest that anybody here has heard of.
        """
        held, final = self._ours(hello.get("held")), self._ours(hello.get("outcome"))
        if held is not None and (self._found is None or ended_attempt(held) > ended_attempt(self._found)):
            self._found = held
        if final is None:
            return None
        if ended_attempt(final) < known_attempt:
            # The history that the member is sent next makes it continue.
            self._outbox.log("%s holds the outcome of attempt %d, which is over" % (hello["pod"], ended_attempt(final)))
            return None
        self._outbox.log("%s already holds the outcome %s" % (hello["pod"], final.get("result")))
        return final

    def found(self, known_attempt: int) -> Optional[Message]:
        """Returns the outcome that an agent here holds, unless the job has continued after it."""
        if self._found is not None and ended_attempt(self._found) < known_attempt:
            self._found = None
        return self._found

    def _ours(self, final: Any) -> Optional[Message]:
        return final if isinstance(final, dict) and final.get("uid") == self._uid else None

    # --- after the decision ---------------------------------------------------------------------------------------

    def decided(self, final: Message, now: Now) -> None:
        """Notes the outcome. A majority must hold a failure before it ends any pod, if a majority is there."""
        is_failure = final.get("result") == FAILED
        if is_failure and self._formation.is_variable and self._witnesses.are_majority(self._roster.peers.keys(), now):
            self._hold_until = now.mono + names.FIRST_START_SECONDS

    def is_held_by(self, ordinal: int) -> None:
        self._holders.add(ordinal)

    def is_certain(self, now: Now) -> bool:
        """Returns whether the outcome stays the outcome, whoever leads next."""
        return now.mono >= self._hold_until or self._roster.is_majority(self._holders)

    def inform(self, final: Message, now: Now) -> None:
        """Sends the outcome to all agents that have not got it yet."""
        waiting = self._roster.without_outcome
        if self.is_certain(now):
            for peer in waiting.values():
                self._outbox.send(peer.conn, {"type": "finish", "outcome": final})
            waiting.clear()
            return
        for peer in waiting.values():
            if peer not in self._asked:
                self._asked.add(peer)
                self._outbox.send(peer.conn, {"type": "hold", "outcome": final})
