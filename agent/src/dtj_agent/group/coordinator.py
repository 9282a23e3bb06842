"""The group's brain, in the agent of pod 0: who is there, which attempt runs, when it restarts, how the job ends. Pure.

Every method takes what happened and `now`, and returns effects. `_advance` looks at the whole state after each of them, so
that no order of events needs a case of its own:

    Rendezvous --all members ready, lease written--> Running --failure or loss--> Stopping --all stopped or gone--> Rendezvous
    and from anywhere --outcome--> Finished
"""

from __future__ import annotations

from typing import List, Optional

from dtj_agent.group import outcome
from dtj_agent.group.attempt import Attempt
from dtj_agent.group.breaking import Breaking
from dtj_agent.group.effects import Close, Effect, Peer, Send, WriteLease
from dtj_agent.group.group_state import PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, SAY_SECONDS
from dtj_agent.group.history import History
from dtj_agent.group.lease_request import Fence
from dtj_agent.group.messages import DONE, FINISHED, IDLE, PROTOCOL_VERSION, RUNNING, STOPPING, STUCK, Message, Now
from dtj_agent.group.recovery import IN_PLACE, POD
from dtj_contract import names
from dtj_contract.names import Reason


class Coordinator(Breaking):
    """See the module."""

    # --- what happens ---------------------------------------------------------------------------------------------

    def joined(self, conn: int, hello: Message, now: Now) -> List[Effect]:
        """An agent has connected and said who it is."""
        ordinal = hello["ordinal"]
        if hello["uid"] != self.rules.uid:
            return self._refuse(conn, "an agent of another job (uid %.60s)" % hello["uid"])
        theirs = History.from_json(hello["history"])
        if hello.get("version") != PROTOCOL_VERSION:
            text = "%s: it speaks version %.20r of the agents' protocol, this agent %d; all pods of a job run one agent image"
            return self._refuse(conn, text % (hello["pod"], hello.get("version"), PROTOCOL_VERSION))
        seen = max(hello["attempt"], theirs.attempt)
        if seen > self._reached and (self.started or self.outcome is not None):
            self._later = max(self._later, seen)
            return self._refuse(conn, "%s: it has seen attempts of a coordinator that has replaced this one" % hello["pod"])
        old = self.peers.get(ordinal)
        if old is not None:
            alive = now.mono - old.heard < 2 * names.HEARTBEAT_SECONDS and old.state != STUCK  # a stuck one is to be replaced
            if old.incarnation != hello["incarnation"] and alive:
                return self._refuse(conn, "a second agent of ordinal %d while the first is alive" % ordinal)
            self._effects.append(Close(old.conn))
            self._gone(old, now.mono - old.heard, now)
        if self.phase == PHASE_RENDEZVOUS and theirs.newer_than(self.history if self.started else self._copied):
            # This coordinator is new and knows less: pod 0 was replaced, or its process. What it has noted itself meanwhile (that
            # its own agent had crashed) makes its copy no newer.
            copied, self._copied = self._copied, History.from_json(hello["history"])
            theirs.take_over(self.history, copied)
            self.ledger.history = theirs
            self.attempt = Attempt(theirs.attempt, [], self.rules.processes)
        self.roster.add(Peer(conn, hello, now))
        self._adopt(hello, now)
        if self.outcome is None:
            self._returned(hello, now)
            self._send(ordinal, {"type": "history", "history": self.history.to_json()})
        self._log("agent of %s joined (%d of %d)" % (hello["pod"], len(self.peers), self.rules.replicas))
        return self._advance(now)

    def left(self, conn: int, silence: float, now: Now) -> List[Effect]:
        """A connection ended; nothing was heard on it for `silence` seconds before."""
        peer = self.roster.by_conn(conn)
        if peer is not None:
            self._gone(peer, silence, now)
        return self._advance(now)

    def received(self, conn: int, message: Message, now: Now) -> List[Effect]:
        """A message of a peer that has joined."""
        peer = self.roster.by_conn(conn)
        if peer is None:
            return []
        peer.heard = now.mono
        kind = message["type"]
        if kind == "event":
            self.ledger.event(message["event"], now)
        elif kind == "leaving":
            self._leaving(peer, float(message["grace"]), now)
        elif kind == "finished":
            peer.state = FINISHED
        elif kind == "stuck" and message["attempt"] == peer.attempt:
            self._stuck(peer, message["what"][:500], now)
        elif kind == "stopped" and message["attempt"] == peer.attempt:
            peer.state, peer.port = IDLE, message["port"]
        elif kind == "done" and message["attempt"] == peer.attempt:
            peer.state, peer.port = DONE, message["port"]
            if self._in_attempt(peer, message):
                self.attempt.done.add(peer.ordinal)
        elif kind == "progress" and self._in_attempt(peer, message):
            fresh = self.recovery is not None and self.recovery.attempt == self.history.attempt
            self.ledger.report(message["progress"], self.recovery if fresh else None, now)
        elif kind == "failed" and self._in_attempt(peer, message):
            self.attempt.fail(peer, message["failures"])
            peer.state = STOPPING if peer.state == RUNNING else peer.state
            self._stop(IN_PLACE, Reason.WORKER_FAILED, 0.0, self.rules.stop_grace, now)
        return self._advance(now)

    def lease_done(self, attempt: int, taken: Optional[int], error: Optional[str], now: Now) -> List[Effect]:
        """The lease of `attempt` is written; or the file held `taken` >= `attempt` already; or it can't be used (`error`)."""
        if self._fence.answered(attempt, taken, error, now):
            chosen = self.roster.ready()
            whole = len(chosen) == self.rules.replicas
            if self.phase == PHASE_RENDEZVOUS and whole and attempt > self._known_attempt:  # who joined meanwhile may know more
                self._start(attempt, chosen, now)
        elif self._fence.is_replaced:
            self._trouble(Reason.LEASE_LOST, str(self._fence.trouble), now)
        elif error is not None:
            self._trouble(Reason.CHECKPOINT_VOLUME_UNAVAILABLE, error, now)
        return self._advance(now)

    def heard_of(self, attempt: int, now: Now) -> List[Effect]:
        """A member that is linked elsewhere knows of `attempt`."""
        self._later = max(self._later, attempt)
        return self._advance(now)

    def named(self, now: Now) -> List[Effect]:
        """Pod 0's name leads to this agent. The name is the API server's word, and goes before who has started what."""
        if self.is_replaced and self.phase == PHASE_RENDEZVOUS:
            self._log("pod 0's name leads here: this coordinator goes on after attempt %d of another one" % self._later)
            self.started, self._remembered, self._fence = 0, self.history.attempt, Fence()
            self._copied = History.from_json(self.history.to_json())
        return self._advance(now)

    def tick(self, now: Now) -> List[Effect]:
        """Time has passed; called about once a second."""
        if self.phase in (PHASE_RENDEZVOUS, PHASE_STOPPING) and now.mono >= self._say_at:
            self._say_at = now.mono + SAY_SECONDS
            self._log(self.phase_message(now) or "waiting for the lease of the next attempt")
        if self._fence.is_overdue(now):
            self._trouble(Reason.CHECKPOINT_VOLUME_UNAVAILABLE, str(self._fence.trouble), now)
        if self.phase == PHASE_STOPPING and now.mono > self._stopped_by:
            for peer in [self.peers[ordinal] for ordinal in self.attempt.node_ranks if self._is_stopping(ordinal)]:
                self._stuck(peer, "its agent has not said what became of them", now)
        return self._advance(now)

    # --- an attempt begins ----------------------------------------------------------------------------------------

    @property
    def _known_attempt(self) -> int:
        """The greatest attempt that anyone here remembers."""
        known = [self.rules.attempt_floor - 1, self.history.attempt, self._later] + [peer.attempt for peer in self.peers.values()]
        return max(known)

    def _gather(self, now: Now) -> None:
        if self.is_replaced:
            return None
        chosen = self.roster.ready()
        # A process that has started nothing may be of a pod 0 that was replaced: it ends no job before all members are with it.
        is_sure = self.started or len(chosen) == self.rules.replicas
        if self._charge is not None and is_sure and not self._count(self._charge["message"], self._charge, now):
            return None
        if len(chosen) < self.rules.replicas:
            if self.recovery is not None and self.recovery.attempt == 0:
                self.recovery.enter("schedule", now)
        elif self.history.attempt and all(peer.state == DONE and peer.attempt == self.history.attempt for peer in chosen):
            # Pod 0's agent was away when the last of them finished; their work is complete all the same.
            self.attempt = Attempt(self.history.attempt, [peer.ordinal for peer in chosen], self.rules.processes)
            return self._decide(outcome.SUCCEEDED, Reason.SUCCEEDED, self._success(), None, now)
        elif now.mono >= self._backoff.until:
            if self.recovery is not None and self.recovery.attempt == 0:
                self.recovery.enter("rendezvous", now)
            attempt = self._fence.ask(self._known_attempt, now)
            if attempt is not None:
                self._effects.append(WriteLease(attempt))
        if 0 < self.rules.rendezvous_timeout < now.mono - self._gathering_since:
            text = "no attempt could start within %.0f s: %s" % (self.rules.rendezvous_timeout, self.phase_message(now))
            self._decide(outcome.FAILED, Reason.RENDEZVOUS_TIMEOUT, text, None, now)
        return None

    def _start(self, attempt: int, chosen: List[Peer], now: Now) -> None:
        history = self.history
        history.attempt = self.started = attempt
        history.start_time = history.start_time or now.wall
        history.revision += 1
        self.attempt = Attempt(attempt, [peer.ordinal for peer in chosen], self.rules.processes)
        self.ledger.started(now)
        if self.recovery is not None:
            self.recovery.attempt = attempt
            self.recovery.enter("load", now)
            history.restarts["pod" if self.recovery.kind == POD else "inPlace"] += 1
            history.recovery(self.recovery.to_json())
        self.phase, self.phase_reason = PHASE_RUNNING, self.recovery.reason if self.recovery else Reason.WORKERS_RUNNING
        master = chosen[0]
        for peer in chosen:
            peer.state, peer.attempt = RUNNING, attempt
            self._send(peer.ordinal, {
                "type": "start", "attempt": attempt, "nodeRank": self.attempt.node_ranks[peer.ordinal], "nodes": len(chosen),
                "masterAddr": master.address, "masterPort": master.port, "history": history.to_json(),
            })  # fmt: skip
        self._sent_revision = history.revision
        self._log("attempt %d starts on %s" % (attempt, ", ".join(peer.pod for peer in chosen)))

    # --- the engine -----------------------------------------------------------------------------------------------

    def _advance(self, now: Now) -> List[Effect]:
        if self.phase == PHASE_RUNNING and self.attempt.is_done:
            self._decide(outcome.SUCCEEDED, Reason.SUCCEEDED, self._success(), None, now)
        if self.phase == PHASE_STOPPING and not any(self._is_stopping(ordinal) for ordinal in self.attempt.node_ranks):
            self._settle(now)
        if self.phase == PHASE_RENDEZVOUS:
            self._gather(now)
        if self.outcome is not None:
            for peer in self.peers.values():
                if not peer.told:
                    peer.told = True
                    self._effects.append(Send(peer.conn, {"type": "finish", "outcome": self.outcome}))
        elif self.history.revision != self._sent_revision:
            self._sent_revision = self.history.revision
            for ordinal in self.peers:
                self._send(ordinal, {"type": "history", "history": self.history.to_json()})
        return self._flush([])

    def _adopt(self, hello: Message, now: Now) -> None:
        final = hello.get("outcome")
        if self.outcome is None and isinstance(final, dict) and final.get("uid") == self.rules.uid:
            if outcome.attempt_of(final) < self._known_attempt:
                self._log("%s holds the outcome of attempt %d, which is over" % (hello["pod"], outcome.attempt_of(final)))
                return  # the history that it is sent now has it go on
            self._log("%s already holds the outcome %s" % (hello["pod"], final.get("result")))
            self._finish(final, now)

    def _trouble(self, reason: str, why: str, now: Now) -> None:
        if self.phase_reason != reason:  # said once
            self.history.event("Warning", reason, why, now.wall)
            self.phase_reason = reason
            self._log("the lease can't be written: %s" % why)

    def _refuse(self, conn: int, whom: str) -> List[Effect]:
        if whom != self._refused:  # said once: it calls again and again
            self._refused = whom
            self._log("refused " + whom)
        return self._flush([Close(conn)])
