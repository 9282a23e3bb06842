"""The group's brain, in the agent of pod 0: who is there, which attempt runs, when it restarts, how the job ends. Pure.

Every method takes what happened and `now`, and returns effects. `_advance` looks at the whole state after each of them, so
that no order of events needs a case of its own:

    Rendezvous --all members ready, lease written--> Running --failure or loss--> Stopping --all stopped or gone--> Rendezvous
    and from anywhere --outcome--> Finished
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from dtj_agent import names, outcome
from dtj_agent.attempt import Attempt
from dtj_agent.backoff import Backoff
from dtj_agent.budget import RestartBudget
from dtj_agent.fence import Fence
from dtj_agent.group import Close, Effect, Log, Peer, Rules, Send, WriteLease
from dtj_agent.history import History, number
from dtj_agent.ledger import Ledger
from dtj_agent.messages import DONE, FINISHED, IDLE, RUNNING, STOPPING, Message, Now
from dtj_agent.names import Reason
from dtj_agent.recovery import IN_PLACE, POD, Recovery

PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, PHASE_FINISHED = "Rendezvous", "Running", "Stopping", "Finished"


class Coordinator:
    """See the module. `history` is what this agent still knew when it started."""

    def __init__(self, rules: Rules, history: History, final: Optional[Message], now: Now) -> None:
        self.rules = rules
        self.ledger = Ledger(history)
        self.outcome = final
        self.phase = PHASE_FINISHED if final else PHASE_RENDEZVOUS
        self.phase_reason = str(final["reason"]) if final else Reason.RENDEZVOUS
        self.peers: Dict[int, Peer] = {}
        """Connected agents by ordinal."""
        self.attempt = Attempt(history.attempt, [], rules.processes)
        """The one that runs, stops, or was the last."""
        self.recovery: Optional[Recovery] = None
        """Open from the failure to the first step after it."""
        self.started = 0
        """The last attempt that this very process has started; 0: none yet."""
        self._crashed = False  # a lost member came back in the same pod: its agent died, not the pod
        self._refused = ""  # who was refused last
        self._gathering_since = now.mono
        self._fence = Fence()
        self._backoff = Backoff()
        self._sent_revision = history.revision
        self._effects: List[Effect] = []

    # --- what happens ---------------------------------------------------------------------------------------------

    def joined(self, conn: int, hello: Message, now: Now) -> List[Effect]:
        """An agent has connected and said who it is."""
        ordinal = hello["ordinal"]
        if hello["uid"] != self.rules.uid:
            return self._refuse(conn, "an agent of another job (uid %.60s)" % hello["uid"])
        theirs = History.from_json(hello["history"])
        if self.started and max(hello["attempt"], theirs.attempt) > self.history.attempt:
            return self._refuse(conn, "%s: it has seen attempts of a coordinator that has replaced this one" % hello["pod"])
        old = self.peers.get(ordinal)
        if old is not None:
            if old.incarnation != hello["incarnation"] and now.mono - old.heard < 2 * names.HEARTBEAT_SECONDS:
                return self._refuse(conn, "a second agent of ordinal %d while the first is alive" % ordinal)
            self._effects.append(Close(old.conn))
            self._gone(old, now.mono - old.heard, now)
        if theirs.newer_than(self.history) and self.phase == PHASE_RENDEZVOUS:
            self.ledger.history = theirs  # this coordinator is new and knows less: pod 0 was replaced
            self.attempt = Attempt(theirs.attempt, [], self.rules.processes)
        self.peers[ordinal] = Peer(conn, hello, now)
        self._adopt(hello, now)
        if self.outcome is None:
            self._returned(hello, now)
            self._send(ordinal, {"type": "history", "history": self.history.to_json()})
        self._log("agent of %s joined (%d of %d)" % (hello["pod"], len(self.peers), self.rules.replicas))
        return self._advance(now)

    def left(self, conn: int, silence: float, now: Now) -> List[Effect]:
        """A connection ended; nothing was heard on it for `silence` seconds before."""
        peer = self._by_conn(conn)
        if peer is not None:
            self._gone(peer, silence, now)
        return self._advance(now)

    def received(self, conn: int, message: Message, now: Now) -> List[Effect]:
        """A message of a peer that has joined."""
        peer = self._by_conn(conn)
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
            self._stop(IN_PLACE, Reason.WORKER_FAILED, 0.0, names.STOP_GRACE_SECONDS, now)
        return self._advance(now)

    def lease_done(self, attempt: int, taken: Optional[int], error: Optional[str], now: Now) -> List[Effect]:
        """The lease of `attempt` is written; or the file held `taken` >= `attempt` already; or it can't be used (`error`)."""
        if self._fence.answered(attempt, taken, error, now):
            chosen = self._ready()
            whole = len(chosen) == self.rules.replicas
            if self.phase == PHASE_RENDEZVOUS and whole and attempt > self._known_attempt:  # who joined meanwhile may know more
                self._start(attempt, chosen, now)
        elif self._fence.is_replaced:
            self._trouble(Reason.LEASE_LOST, str(self._fence.trouble), now)
        elif error is not None:
            self._trouble(Reason.CHECKPOINT_VOLUME_UNAVAILABLE, error, now)
        return self._advance(now)

    def tick(self, now: Now) -> List[Effect]:
        """Time has passed; called about once a second."""
        if self._fence.is_overdue(now):
            self._trouble(Reason.CHECKPOINT_VOLUME_UNAVAILABLE, str(self._fence.trouble), now)
        return self._advance(now)

    # --- what it looks like ---------------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """What the job remembers; members have copies."""
        return self.ledger.history

    @property
    def waiting_for(self) -> List[int]:
        """Ordinals without which no attempt can start."""
        if self.phase != PHASE_RENDEZVOUS or len(self._ready()) >= self.rules.replicas:
            return []
        ready = {peer.ordinal for peer in self._ready()}
        return [ordinal for ordinal in range(self.rules.replicas) if ordinal not in ready]

    @property
    def released(self) -> bool:
        """The outcome has reached everyone who is connected: this agent may exit."""
        return self.outcome is not None and all(peer.state == FINISHED for peer in self.peers.values() if peer.ordinal != 0)

    # --- peers come and go ----------------------------------------------------------------------------------------

    def _gone(self, peer: Peer, silence: float, now: Now) -> None:
        del self.peers[peer.ordinal]
        if self.outcome is not None:
            return
        self._log("agent of %s is gone (silent for %.2f s)" % (peer.pod, silence))
        if self.attempt.needs(peer) and self.phase in (PHASE_RUNNING, PHASE_STOPPING):
            self.attempt.lose(peer)
            self._stop(POD, Reason.POD_LOST, silence, names.STOP_GRACE_SECONDS, now)
        elif self.recovery is not None and self.phase == PHASE_RENDEZVOUS:
            self.recovery.kind = POD  # lost while the group re-forms

    def _leaving(self, peer: Peer, grace: float, now: Now) -> None:
        peer.leaving = True
        if self.phase == PHASE_RUNNING and self.attempt.needs(peer):
            # Its pod ends, by whomever. All ranks get SIGTERM now, with the pod's own grace, so that a trainer can still
            # write a checkpoint together.
            self.attempt.lose(peer)
            self._stop(POD, Reason.POD_LOST, 0.0, grace, now)

    def _returned(self, hello: Message, now: Now) -> None:
        """Was this a member of the attempt that broke, and what does its return say about why it went?"""
        loss = self.attempt.lost.pop(hello["ordinal"], None)
        broke = hello.get("interrupted")
        if not isinstance(broke, dict) or broke.get("attempt") != self.history.attempt:
            return
        if self.recovery is None and self.phase == PHASE_RENDEZVOUS:
            # The coordinator itself was lost: the members that it left behind tell when. They have stopped meanwhile.
            ago = number(broke.get("ago"))
            began = Now(now.mono - ago, now.wall - ago)
            self.recovery = Recovery(POD, Reason.POD_LOST, began, number(broke.get("silence")), self.ledger.last_step)
            self.recovery.enter("schedule", began)
            self.phase_reason = Reason.POD_LOST
        recovery = self.recovery
        if recovery is None or recovery.attempt:
            return
        if hello["crashed"]:
            recovery.reason = self.phase_reason = Reason.AGENT_CRASHED
            self.history.failure(self.attempt.crash_failure(hello, now))
            self._crashed = not recovery.counted
        elif loss is not None and loss.incarnation == hello["incarnation"] and recovery.reason == Reason.POD_LOST:
            recovery.reason = self.phase_reason = Reason.CONNECTION_LOST
        if isinstance(broke.get("step"), int):
            recovery.last_step = max(broke["step"], recovery.last_step or 0)

    def _adopt(self, hello: Message, now: Now) -> None:
        final = hello.get("outcome")
        if self.outcome is None and isinstance(final, dict) and final.get("uid") == self.rules.uid:
            self._log("%s already holds the outcome %s" % (hello["pod"], final.get("result")))
            self._finish(final, now)

    # --- an attempt breaks ----------------------------------------------------------------------------------------

    def _stop(self, kind: str, reason: str, detect: float, grace: float, now: Now) -> None:
        """End the attempt everywhere. Called again while it ends: the shorter grace holds, a lost pod is the stronger reason."""
        if self.phase == PHASE_RUNNING:
            self.phase, self.phase_reason = PHASE_STOPPING, reason
            self.recovery = Recovery(kind, reason, now, detect, self.ledger.last_step)
            self._crashed = False
            self._log("attempt %d stops: %s" % (self.history.attempt, reason))
        elif kind == POD and self.recovery is not None:
            self.recovery.kind, self.recovery.reason, self.phase_reason = POD, reason, reason
        for ordinal in self.attempt.node_ranks:
            if ordinal in self.peers and self.peers[ordinal].state in (RUNNING, STOPPING, DONE):
                self._send(ordinal, {"type": "stop", "attempt": self.history.attempt, "grace": grace})
                self.peers[ordinal].state = STOPPING

    def _settle(self, now: Now) -> None:
        """Everyone has stopped or is gone: now that all evidence is in, say why, and whether there is a next attempt."""
        assert self.recovery is not None
        self.recovery.last_step = self.ledger.last_step  # what was reported while the workers stopped counts too,
        self.ledger.broken()  # and a checkpoint that they still wrote
        root = self.attempt.root_failure(self.history.progressed, now)
        pod_left = bool(self.attempt.lost) or self.recovery.kind == POD
        if root is not None and (not pod_left or root["reason"] in names.PERMANENT):
            self.history.failure(root)
            self.recovery.reason = self.phase_reason = root["reason"]
            if root["reason"] in names.PERMANENT:
                return self._decide(outcome.FAILED, root["reason"], root["message"], root, now)
            if not self._count(root["message"], root, now):
                return None
            wait = self._backoff.failed(self.ledger.stepped, self.ledger.age(now), now.mono)
            if wait:
                self._log("the attempt ended before its first step: the next one waits %.0f s" % wait)
        for failure in self.attempt.loss_failures(now):
            self.history.failure(failure)
        self.phase = PHASE_RENDEZVOUS
        self._gathering_since = now.mono
        self.recovery.enter("schedule", now)
        return None

    def _count(self, message: str, failure: Optional[Dict[str, Any]], now: Now) -> bool:
        """Take one restart from the budget; if there is none, end the job."""
        assert self.recovery is not None
        budget = RestartBudget(self.rules.max_restarts, self.rules.window, self.history.spent)
        if not budget.spend(now.wall):
            why = "%d counted restarts within %.0f s are spent; the last failure: %s"
            text = why % (self.rules.max_restarts, self.rules.window, message)
            self._decide(outcome.FAILED, Reason.RESTART_BUDGET_SPENT, text, failure, now)
            return False
        self.history.spent = budget.spent
        self.history.restarts["counted"] += 1
        self.history.revision += 1
        self.recovery.counted = True
        self._crashed = False
        return True

    # --- an attempt begins ----------------------------------------------------------------------------------------

    def _ready(self) -> List[Peer]:
        """The agents that would make up an attempt now: the lowest ordinals that have no worker and stay."""
        ready = [peer for _, peer in sorted(self.peers.items()) if peer.state in (IDLE, DONE) and not peer.leaving]
        return ready[: self.rules.replicas]

    @property
    def _known_attempt(self) -> int:
        """The greatest attempt that anyone here remembers."""
        known = [self.rules.attempt_floor - 1, self.history.attempt] + [peer.attempt for peer in self.peers.values()]
        return max(known)

    def _gather(self, now: Now) -> None:
        if self._crashed and not self._count(self.history.failures[-1]["message"], self.history.failures[-1], now):
            return None
        chosen = self._ready()
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
        if now.mono - self._gathering_since > self.rules.rendezvous_timeout:
            what = self._fence.trouble or "pods %s did not join" % ", ".join(map(str, self.waiting_for))
            text = "no attempt could start within %.0f s: %s" % (self.rules.rendezvous_timeout, what)
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

    # --- the end --------------------------------------------------------------------------------------------------

    def _success(self) -> str:
        return "all %d workers of attempt %d exited with 0" % (self.attempt.world_size, self.attempt.number)

    def _decide(self, result: str, reason: str, message: str, failure: Optional[Dict[str, Any]], now: Now) -> None:
        if result == outcome.SUCCEEDED:
            self.ledger.succeeded(now)
        if self.recovery is not None and self.recovery.attempt:
            self.recovery.finished(now)
            self.history.recovery(self.recovery.to_json())
        self._finish(outcome.build(self.rules.uid, result, reason, message, failure, self.history, now.wall), now)

    def _finish(self, final: Message, now: Now) -> None:
        self.outcome = final
        self.ledger.broken()
        self.phase, self.phase_reason = PHASE_FINISHED, str(final.get("reason"))
        self._log("the job is finished: %s, %s: %s" % (final.get("result"), final.get("reason"), final.get("message")))

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

    def _in_attempt(self, peer: Peer, message: Message) -> bool:
        """The message is about the attempt that runs or stops now; anything else is over."""
        current = message["attempt"] == self.attempt.number and peer.ordinal in self.attempt.node_ranks
        return current and self.phase in (PHASE_RUNNING, PHASE_STOPPING)

    def _is_stopping(self, ordinal: int) -> bool:
        return ordinal in self.peers and self.peers[ordinal].state == STOPPING

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

    def _by_conn(self, conn: int) -> Optional[Peer]:
        for peer in self.peers.values():
            if peer.conn == conn:
                return peer
        return None

    def _send(self, ordinal: int, message: Message) -> None:
        self._effects.append(Send(self.peers[ordinal].conn, message))

    def _log(self, text: str) -> None:
        self._effects.append(Log(text))

    def _flush(self, more: List[Effect]) -> List[Effect]:
        effects, self._effects = self._effects + more, []
        return effects
