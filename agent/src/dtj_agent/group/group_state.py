"""What the coordinator knows of the group, and how it ends. Pure.

Three layers, one class each: this one; how an attempt breaks (breaking.py); how one begins, and what happens (coordinator.py).
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from dtj_agent.group import outcome
from dtj_agent.group.attempt import Attempt
from dtj_agent.group.backoff import Backoff
from dtj_agent.group.effects import Effect, Log, Peer, Rules, Send
from dtj_agent.group.flapping import Flapping
from dtj_agent.group.goodput import Ledger
from dtj_agent.group.history import History
from dtj_agent.group.lease_request import Fence
from dtj_agent.group.messages import FINISHED, STOPPING, Message, Now
from dtj_agent.group.recovery import Recovery
from dtj_agent.group.roster import Roster
from dtj_contract.names import Reason

NEVER = float("inf")
SAY_SECONDS = 30.0  # between two log lines about what the group waits for
PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, PHASE_FINISHED = "Rendezvous", "Running", "Stopping", "Finished"


class GroupState:
    """`history` is what this agent still knew when it started, `final` the outcome if there is one."""

    def __init__(self, rules: Rules, history: History, final: Optional[Message], now: Now) -> None:
        self.rules = rules
        self.ledger = Ledger(history)
        self.outcome = final
        self.phase = PHASE_FINISHED if final else PHASE_RENDEZVOUS
        self.phase_reason = str(final["reason"]) if final else Reason.RENDEZVOUS
        self.roster = Roster(rules)
        self.peers = self.roster.peers
        """Connected agents by ordinal."""
        self.attempt = Attempt(history.attempt, [], rules.processes)
        """The one that runs, stops, or was the last."""
        self.recovery: Optional[Recovery] = None
        """Open from the failure to the first step after it."""
        self.started = 0
        """The last attempt that this very process has started; 0: none yet."""
        self._remembered = history.attempt  # by this pod, when this process began
        self._copied = History.from_json(history.to_json())  # before what this process has noted itself
        self._later = 0  # the greatest attempt that another coordinator is known to have started
        self._charge: Optional[Dict[str, Any]] = None  # a failure that is to be counted before the next attempt
        self._flapping = Flapping(rules.window)
        self._refused = ""  # who was refused last
        self._gathering_since = now.mono
        self._say_at = now.mono + SAY_SECONDS  # why there is no attempt
        self._stopped_by = 0.0  # until then everyone has said what became of its workers
        self._shortest_grace = NEVER  # that the members of the attempt that stops have been sent
        self._fence = Fence()
        self._backoff = Backoff()
        self._sent_revision = history.revision
        self._effects: List[Effect] = []

    # --- which coordinator this is --------------------------------------------------------------------------------

    @property
    def announced(self) -> int:
        """What calls to members say: the last attempt that this pod has started; 0 for a pod that is new.

        A process that is new in a pod that is not says what the pod remembers. Else it would pass for a new pod 0, and take
        the members from the pod that has replaced it.
        """
        return self.started or self._remembered

    @property
    def is_replaced(self) -> bool:
        """Another coordinator has started attempts after those of this process: the job goes on there."""
        return self._fence.is_replaced or bool(self.started and self._is_behind)

    @property
    def _is_behind(self) -> bool:
        """There are later attempts than this coordinator remembers: it can't know how the job ends."""
        return self._later > self._reached

    @property
    def _reached(self) -> int:
        return max(self.history.attempt, 0 if self.outcome is None else outcome.attempt_of(self.outcome))

    # --- what it looks like ---------------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """What the job remembers; members have copies."""
        return self.ledger.history

    @property
    def waiting_for(self) -> List[int]:
        """Ordinals without which no attempt can start."""
        return self.roster.missing() if self.phase == PHASE_RENDEZVOUS else []

    def phase_message(self, now: Now) -> str:
        """What the group waits for, in words; "" if it waits for nothing that could be named."""
        if self.phase == PHASE_STOPPING:
            left = [self.peers[ordinal].pod for ordinal in sorted(self.attempt.node_ranks) if self._is_stopping(ordinal)]
            return "waiting for the workers of %s to end" % ", ".join(left) if left else ""
        if self.phase != PHASE_RENDEZVOUS:
            return ""
        if self.is_replaced:
            return self._fence.trouble or "another coordinator of this job has begun attempt %d" % self._later
        pause = self._backoff.until - now.mono
        return (
            self.roster.waiting(now) or self._fence.trouble or ("the next attempt begins in %.0f s" % pause if pause > 0 else "")
        )

    @property
    def released(self) -> bool:
        """The outcome has reached everyone who is connected: this agent may exit."""
        return self.outcome is not None and all(peer.state == FINISHED for peer in self.peers.values() if peer.ordinal != 0)

    # --- the end --------------------------------------------------------------------------------------------------

    def _success(self) -> str:
        return "all %d workers of attempt %d exited with 0" % (self.attempt.world_size, self.attempt.number)

    def _decide(self, result: str, reason: str, message: str, failure: Optional[Dict[str, Any]], now: Now) -> None:
        """Ends the job, unless another coordinator goes on with it."""
        if self.is_replaced or self._is_behind:
            self.phase = PHASE_RENDEZVOUS
            return
        if result == outcome.SUCCEEDED:
            self.ledger.succeeded(now)
        if self.recovery is not None and self.recovery.attempt:
            self.recovery.ended(now)
            self.history.recovery(self.recovery.to_json())
        self._finish(
            outcome.build(self.rules.uid, result, reason, message, failure, self.history, now.wall, self.rules.attempt_floor), now
        )

    def _finish(self, final: Message, now: Now) -> None:
        self.outcome = final
        self.ledger.broken()
        self.phase, self.phase_reason = PHASE_FINISHED, str(final.get("reason"))
        self._log("the job is finished: %s, %s: %s" % (final.get("result"), final.get("reason"), final.get("message")))

    # --- for the layers above -------------------------------------------------------------------------------------

    def _in_attempt(self, peer: Peer, message: Message) -> bool:
        """The message is about the attempt that runs or stops now; anything else is over."""
        current = message["attempt"] == self.attempt.number and peer.ordinal in self.attempt.node_ranks
        return current and self.phase in (PHASE_RUNNING, PHASE_STOPPING)

    def _is_stopping(self, ordinal: int) -> bool:
        return ordinal in self.peers and self.peers[ordinal].state == STOPPING

    def _send(self, ordinal: int, message: Message) -> None:
        self._effects.append(Send(self.peers[ordinal].conn, message))

    def _log(self, text: str) -> None:
        self._effects.append(Log(text))

    def _flush(self, more: List[Effect]) -> List[Effect]:
        effects, self._effects = self._effects + more, []
        return effects
