"""The group's decisions, in the agent of pod 0: which attempt runs, when it restarts, how the job ends. Pure.

Every event method takes what happened and `now`, and returns effects. `_advance` looks at the whole state after each event,
so that no order of events needs a case of its own:

    Rendezvous --all members ready, lease written--> Running --failure or loss--> Stopping --all stopped or gone--> Rendezvous
    and from anywhere --outcome--> Finished

The coordinator is put together from parts: `Roster` (who is connected), `Attempt` (its members and failures), `AttemptStop`
(whom a stop waits for), `RestartPolicy` (what a failure costs), `LeaseRequest` (the next attempt's number), `GoodputTracker`
(progress), `RecoveryTimer` (phases of a recovery) and `Succession` (whether another coordinator has replaced this one).
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from dtj_agent.group import outcome
from dtj_agent.group.admission import Admission
from dtj_agent.group.attempt import Attempt
from dtj_agent.group.effects import Effect, Outbox
from dtj_agent.group.goodput import GoodputTracker
from dtj_agent.group.history import History
from dtj_agent.group.lease_request import LeaseRequest
from dtj_agent.group.messages import DONE, FINISHED, IDLE, RUNNING, STOPPING, STUCK, Message, Now
from dtj_agent.group.recovery_timer import IN_PLACE, POD, RecoveryTimer
from dtj_agent.group.restart_policy import Decision, Fail, RestartPolicy
from dtj_agent.group.roster import Peer, Roster
from dtj_agent.group.rules import Rules
from dtj_agent.group.stopping import AttemptStop
from dtj_agent.group.succession import Succession
from dtj_contract.names import Reason

PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, PHASE_FINISHED = "Rendezvous", "Running", "Stopping", "Finished"
LOG_SECONDS = 30.0
"""Between two log lines about what the group waits for."""


class Coordinator:
    """Decides for the whole group. `history`: what this agent remembers at its start; `final`: the outcome, if there is one."""

    def __init__(self, rules: Rules, history: History, final: Optional[Message], now: Now) -> None:
        self.rules = rules
        self.outcome = final
        self.phase = PHASE_FINISHED if final else PHASE_RENDEZVOUS
        self.phase_reason = str(final["reason"]) if final else Reason.RENDEZVOUS
        self.roster = Roster(rules)
        self.goodput = GoodputTracker(history)
        self.policy = RestartPolicy(rules)
        self.succession = Succession(history)
        self.lease = LeaseRequest()
        self._admission = Admission(rules, self.roster, self.succession)
        self.attempt = Attempt(history.attempt, [], rules.processes)
        """The current attempt, or the last one."""
        self.recovery: Optional[RecoveryTimer] = None
        """The last recovery; it is open until the first step after the failure."""
        self._stopping = AttemptStop(self.attempt, self.roster, now)
        self._gathering_since = now.mono
        self._log_at = now.mono + LOG_SECONDS
        self._sent_revision = history.revision
        self._outbox = Outbox()

    # --- the state as others see it -------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """What the job remembers; members have copies."""
        return self.goodput.history

    @property
    def peers(self) -> Dict[int, Peer]:
        """The connected agents, by ordinal."""
        return self.roster.peers

    @property
    def is_replaced(self) -> bool:
        """Whether another coordinator has started attempts after those of this process: then the job continues there."""
        return self.lease.is_replaced or self.succession.is_replaced(self._reached)

    @property
    def waiting_for(self) -> List[int]:
        """The ordinals without which no attempt can start."""
        return self.roster.missing() if self.phase == PHASE_RENDEZVOUS else []

    def phase_message(self, now: Now) -> str:
        """Returns what the group waits for; "" if it waits for nothing that has a name."""
        if self.phase == PHASE_STOPPING:
            pods = [peer.pod for peer in self._stopping.pending()]
            return "waiting for the workers of %s to end" % ", ".join(pods) if pods else ""
        if self.phase != PHASE_RENDEZVOUS:
            return ""
        if self.is_replaced:
            return self.lease.trouble or "another coordinator of this job has begun attempt %d" % self.succession.later
        pause = self.policy.not_before - now.mono
        held_back = "the next attempt begins in %.0f s" % pause if pause > 0 else ""
        return self.roster.waiting(now) or self.lease.trouble or held_back

    @property
    def released(self) -> bool:
        """Whether the outcome has reached every connected agent, so that this one may exit."""
        return self.outcome is not None and all(peer.state == FINISHED for peer in self.peers.values() if peer.ordinal != 0)

    # --- events ---------------------------------------------------------------------------------------------------

    def joined(self, conn: int, hello: Message, now: Now) -> List[Effect]:
        """Handles the hello of an agent that has connected."""
        theirs = History.from_json(hello["history"])
        rejection = self._admission.rejection(hello, theirs, self._reached, self.outcome is not None, now)
        if rejection:
            if not self._admission.is_repeated(rejection):
                self._outbox.log("refused " + rejection)
            self._outbox.close(conn)
            return self._outbox.take()
        old = self.peers.get(hello["ordinal"])
        if old is not None:
            self._outbox.close(old.conn)
            self._gone(old, now.mono - old.heard, now)
        newer = self.succession.take_over(theirs, self.history) if self.phase == PHASE_RENDEZVOUS else None
        if newer is not None:
            self.goodput.history = newer
            self.attempt = Attempt(newer.attempt, [], self.rules.processes)
        self.roster.add(Peer(conn, hello, now))
        self._adopt(hello, now)
        if self.outcome is None:
            self._returned(hello, now)
            self._send_history(hello["ordinal"])
        self._outbox.log("agent of %s joined (%d of %d)" % (hello["pod"], len(self.peers), self.rules.replicas))
        return self._advance(now)

    def left(self, conn: int, silence: float, now: Now) -> List[Effect]:
        """Handles the end of a connection that was silent for `silence` seconds before."""
        peer = self.roster.by_conn(conn)
        if peer is not None:
            self._gone(peer, silence, now)
        return self._advance(now)

    def received(self, conn: int, message: Message, now: Now) -> List[Effect]:
        """Handles a message of a peer that has joined."""
        peer = self.roster.by_conn(conn)
        if peer is None:
            return []
        peer.heard = now.mono
        kind = message["type"]
        if kind == "event":
            self.goodput.event(message["event"], now)
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
            self.goodput.report(message["progress"], self.recovery if fresh else None, now)
        elif kind == "failed" and self._in_attempt(peer, message):
            self.attempt.fail(peer, message["failures"])
            peer.state = STOPPING if peer.state == RUNNING else peer.state
            self._break(IN_PLACE, Reason.WORKER_FAILED, 0.0, self.rules.stop_grace, now)
        return self._advance(now)

    def lease_done(self, attempt: int, taken: Optional[int], error: Optional[str], now: Now) -> List[Effect]:
        """Handles the volume's answer: the lease of `attempt` is written, unless `taken` or `error` says why not.

        `taken`: the file held this number >= `attempt` already; `error`: the file can't be used.
        """
        if self.lease.answered(attempt, taken, error, now):
            chosen = self.roster.ready()
            whole = len(chosen) == self.rules.replicas
            # An agent that joined meanwhile may know a later attempt.
            if self.phase == PHASE_RENDEZVOUS and whole and attempt > self._known_attempt:
                self._start(attempt, chosen, now)
        elif self.lease.is_replaced:
            self._lease_trouble(Reason.LEASE_LOST, str(self.lease.trouble), now)
        elif error is not None:
            self._lease_trouble(Reason.CHECKPOINT_VOLUME_UNAVAILABLE, error, now)
        return self._advance(now)

    def heard_of(self, attempt: int, now: Now) -> List[Effect]:
        """Handles the report of a member that is linked elsewhere and knows of `attempt`."""
        self.succession.heard_of(attempt)
        return self._advance(now)

    def named(self, now: Now) -> List[Effect]:
        """Handles that pod 0's name leads to this agent: the API server's choice goes before who has started what."""
        if self.is_replaced and self.phase == PHASE_RENDEZVOUS:
            later = self.succession.later
            self._outbox.log("pod 0's name leads here: this coordinator goes on after attempt %d of another one" % later)
            self.succession.resume(self.history)
            self.lease = LeaseRequest()
        return self._advance(now)

    def tick(self, now: Now) -> List[Effect]:
        """Handles the passing of time; called about once a second."""
        if self.phase in (PHASE_RENDEZVOUS, PHASE_STOPPING) and now.mono >= self._log_at:
            self._log_at = now.mono + LOG_SECONDS
            self._outbox.log(self.phase_message(now) or "waiting for the lease of the next attempt")
        if self.lease.is_overdue(now):
            self._lease_trouble(Reason.CHECKPOINT_VOLUME_UNAVAILABLE, str(self.lease.trouble), now)
        if self.phase == PHASE_STOPPING and self._stopping.is_overdue(now):
            for peer in self._stopping.pending():
                self._stuck(peer, "its agent has not said what became of them", now)
        return self._advance(now)

    def _advance(self, now: Now) -> List[Effect]:
        if self.phase == PHASE_RUNNING and self.attempt.is_done:
            self._succeed(now)
        if self.phase == PHASE_STOPPING and not self._stopping.pending():
            self._settle(now)
        if self.phase == PHASE_RENDEZVOUS:
            self._gather(now)
        if self.outcome is not None:
            for peer in self.peers.values():
                if not peer.outcome_sent:
                    peer.outcome_sent = True
                    self._outbox.send(peer.conn, {"type": "finish", "outcome": self.outcome})
        elif self.history.revision != self._sent_revision:
            self._sent_revision = self.history.revision
            for ordinal in self.peers:
                self._send_history(ordinal)
        return self._outbox.take()

    # --- members leave and come back ------------------------------------------------------------------------------

    def _gone(self, peer: Peer, silence: float, now: Now) -> None:
        self.roster.remove(peer, now)
        if self.outcome is not None:
            return
        self._outbox.log("agent of %s is gone (silent for %.2f s)" % (peer.pod, silence))
        if self.attempt.needs(peer) and self.phase in (PHASE_RUNNING, PHASE_STOPPING):
            if peer.state == STUCK:  # counted as stuck already
                return
            self.attempt.lose(peer)
            self._break(POD, Reason.POD_LOST, silence, self.rules.stop_grace, now)
        elif self.recovery is not None and self.phase == PHASE_RENDEZVOUS:
            self.recovery.kind = POD  # lost while the group re-forms

    def _leaving(self, peer: Peer, grace: float, now: Now) -> None:
        peer.leaving = True
        if self.phase == PHASE_RUNNING and self.attempt.needs(peer):
            # The peer's pod ends, whoever ended it. All ranks get SIGTERM now, with the pod's own grace, so that a trainer
            # can still write a checkpoint together.
            self.attempt.lose(peer)
            self._break(POD, Reason.POD_LOST, 0.0, grace, now)

    def _returned(self, hello: Message, now: Now) -> None:
        """Corrects the cause of the recovery if a member of the broken attempt is back and its hello tells why it went."""
        loss = self.attempt.lost.pop(hello["ordinal"], None)
        broke = hello.get("interrupted")
        if not isinstance(broke, dict) or broke.get("attempt") != self.history.attempt:
            return
        if self.recovery is None and self.phase == PHASE_RENDEZVOUS:
            # The coordinator itself was lost: the members that it left behind report when. They have stopped meanwhile.
            self.recovery = RecoveryTimer.of_lost_coordinator(broke, self.goodput.last_step, now)
            self.phase_reason = Reason.POD_LOST
        recovery = self.recovery
        if recovery is None or recovery.attempt:
            return
        same_agent = loss is not None and loss.incarnation == hello["incarnation"]
        if hello["crashed"]:  # its agent died, not the pod
            self._explain(recovery, hello, Reason.AGENT_CRASHED, now)
        elif same_agent and recovery.reason == Reason.POD_LOST:
            self._explain(recovery, hello, Reason.CONNECTION_LOST, now)
        if isinstance(broke.get("step"), int):
            recovery.last_step = max(broke["step"], recovery.last_step or 0)

    def _explain(self, recovery: RecoveryTimer, hello: Message, reason: str, now: Now) -> None:
        recovery.reason = self.phase_reason = reason
        failure = self.attempt.return_failure(hello, reason, now)
        self.history.failure(failure)
        self._follow(self.policy.decide(failure, self.history, now), now)

    # --- an attempt breaks ----------------------------------------------------------------------------------------

    def _break(self, kind: str, reason: str, detect: float, grace: float, now: Now) -> None:
        """Stops the attempt everywhere.

        Called again while the attempt stops: the shorter grace holds, and a lost pod is the stronger reason.
        """
        if self.phase == PHASE_RUNNING:
            self.phase, self.phase_reason = PHASE_STOPPING, reason
            self.recovery = RecoveryTimer(kind, reason, now, detect, self.goodput.last_step)
            self.policy.attempt_broke()
            self._stopping = AttemptStop(self.attempt, self.roster, now)
            self.goodput.ended(now)
            self._outbox.log("attempt %d stops: %s" % (self.history.attempt, reason))
        elif kind == POD and self.recovery is not None:
            self.recovery.kind, self.recovery.reason, self.phase_reason = POD, reason, reason
        self._stopping.request(grace, self._outbox, now)

    def _stuck(self, peer: Peer, what: str, now: Now) -> None:
        """Gives up a member whose workers SIGKILL does not end: the group restarts when its pod is replaced.

        The stuck processes run no instruction any more: the signal is the first thing that they get when they wake.
        """
        peer.state = STUCK
        known = self.attempt.lost.get(peer.ordinal)
        if known is not None and known.reason == Reason.WORKER_STUCK:
            return  # a repeated report does not move the others' deadline
        if self.phase in (PHASE_RUNNING, PHASE_STOPPING) and peer.ordinal in self.attempt.node_ranks:
            self.attempt.lose(peer, Reason.WORKER_STUCK, what)
            self._break(POD, Reason.WORKER_STUCK, 0.0, self.rules.stop_grace, now)

    def _settle(self, now: Now) -> None:
        """Decides what follows, now that every member has stopped or is gone and all evidence is in."""
        assert self.recovery is not None
        # Steps that were reported and a checkpoint that was written while the workers stopped count too.
        self.recovery.last_step = self.goodput.last_step
        self.goodput.broken()
        pod_lost = bool(self.attempt.lost) or self.recovery.kind == POD
        root = self.attempt.root_failure(self.history.established, pod_lost, now)
        if root is not None:
            self.history.failure(root)
            self.recovery.reason = self.phase_reason = root["reason"]
            goodput = self.goodput
            if not self._follow(self.policy.decide(root, self.history, now, goodput.stepped, goodput.lived), now):
                return
        for failure in self.attempt.loss_failures(now):
            self.history.failure(failure)
            self._follow(self.policy.decide(failure, self.history, now), now)
        self.phase = PHASE_RENDEZVOUS
        self._gathering_since, self._log_at = now.mono, now.mono + LOG_SECONDS
        self.recovery.enter("schedule", now)

    def _follow(self, decision: Decision, now: Now) -> bool:
        """Carries out a decision of the restart policy. Returns whether the group restarts."""
        if isinstance(decision, Fail):
            self._decide(outcome.FAILED, decision.reason, decision.message, decision.failure, now)
            return False
        if decision.counted and self.recovery is not None:
            self.recovery.counted = True
        if decision.wait:
            self._outbox.log("%s: the next attempt waits %.0f s" % (decision.why, decision.wait))
        return True

    # --- an attempt begins ----------------------------------------------------------------------------------------

    @property
    def _known_attempt(self) -> int:
        """The greatest attempt that anyone here remembers."""
        return max(self.rules.attempt_floor - 1, self.history.attempt, self.succession.later, self.roster.greatest_attempt)

    def _gather(self, now: Now) -> None:
        if self.is_replaced:
            return
        chosen = self.roster.ready()
        # A process that has started nothing may be of a pod 0 that was replaced: it ends no job before all members are with it.
        is_sure = self.succession.started or len(chosen) == self.rules.replicas
        may_charge = self.policy.deferred is not None and is_sure
        if may_charge and not self._follow(self.policy.charge_deferred(self.history, now), now):
            return
        if len(chosen) < self.rules.replicas:
            self._recovery_phase("schedule", now)
        elif self.history.attempt and all(peer.state == DONE and peer.attempt == self.history.attempt for peer in chosen):
            # Pod 0's agent was away when the last of them finished; their work is complete all the same.
            self.attempt = Attempt.of(chosen, self.history.attempt, self.rules.processes)
            self._succeed(now)
            return
        elif now.mono >= self.policy.not_before:
            self._recovery_phase("rendezvous", now)
            attempt = self.lease.request(self._known_attempt, now)
            if attempt is not None:
                self._outbox.write_lease(attempt)
        if 0 < self.rules.rendezvous_timeout < now.mono - self._gathering_since:
            text = "no attempt could start within %.0f s: %s" % (self.rules.rendezvous_timeout, self.phase_message(now))
            self._decide(outcome.FAILED, Reason.RENDEZVOUS_TIMEOUT, text, None, now)

    def _recovery_phase(self, phase: str, now: Now) -> None:
        if self.recovery is not None and self.recovery.attempt == 0:
            self.recovery.enter(phase, now)

    def _start(self, attempt: int, chosen: List[Peer], now: Now) -> None:
        history = self.history
        history.attempt = self.succession.started = attempt
        history.start_time = history.start_time or now.wall
        history.revision += 1
        self.attempt = Attempt.of(chosen, attempt, self.rules.processes)
        self.goodput.started(now)
        if self.recovery is not None:
            self.recovery.started(attempt, history, now)
        self.phase, self.phase_reason = PHASE_RUNNING, self.recovery.reason if self.recovery else Reason.WORKERS_RUNNING
        self.attempt.start(chosen, history, self._outbox)
        self._sent_revision = history.revision
        self._outbox.log("attempt %d starts on %s" % (attempt, ", ".join(peer.pod for peer in chosen)))

    # --- the job ends ---------------------------------------------------------------------------------------------

    @property
    def _reached(self) -> int:
        """The greatest attempt whose end this coordinator knows or decides."""
        return max(self.history.attempt, 0 if self.outcome is None else outcome.attempt_of(self.outcome))

    def _succeed(self, now: Now) -> None:
        text = "all %d workers of attempt %d exited with 0" % (self.attempt.world_size, self.attempt.number)
        self._decide(outcome.SUCCEEDED, Reason.SUCCEEDED, text, None, now)

    def _decide(self, result: str, reason: str, message: str, failure: Optional[Dict[str, Any]], now: Now) -> None:
        """Ends the job, unless another coordinator continues it."""
        if self.is_replaced or self.succession.is_behind(self._reached):
            self.phase = PHASE_RENDEZVOUS
            return
        if result == outcome.SUCCEEDED:
            self.goodput.succeeded(now)
        if self.recovery is not None and self.recovery.attempt:
            self.recovery.ended(self.history, now)
        uid, floor = self.rules.uid, self.rules.attempt_floor
        self._finish(outcome.build(uid, result, reason, message, failure, self.history, now.wall, floor))

    def _finish(self, final: Message) -> None:
        self.outcome = final
        self.goodput.broken()
        self.phase, self.phase_reason = PHASE_FINISHED, str(final.get("reason"))
        self._outbox.log("the job is finished: %s, %s: %s" % (final.get("result"), final.get("reason"), final.get("message")))

    def _adopt(self, hello: Message, now: Now) -> None:
        """Takes over the outcome that a member holds, unless the job has continued after it."""
        final = hello.get("outcome")
        if self.outcome is None and isinstance(final, dict) and final.get("uid") == self.rules.uid:
            if outcome.attempt_of(final) < self._known_attempt:
                # The history that the member is sent now makes it continue.
                self._outbox.log("%s holds the outcome of attempt %d, which is over" % (hello["pod"], outcome.attempt_of(final)))
                return
            self._outbox.log("%s already holds the outcome %s" % (hello["pod"], final.get("result")))
            self._finish(final)

    # --- helpers --------------------------------------------------------------------------------------------------

    def _in_attempt(self, peer: Peer, message: Message) -> bool:
        """Returns whether the message is about the attempt that runs or stops now."""
        current = message["attempt"] == self.attempt.number and peer.ordinal in self.attempt.node_ranks
        return current and self.phase in (PHASE_RUNNING, PHASE_STOPPING)

    def _send_history(self, ordinal: int) -> None:
        self._outbox.send(self.peers[ordinal].conn, {"type": "history", "history": self.history.to_json()})

    def _lease_trouble(self, reason: str, why: str, now: Now) -> None:
        if self.phase_reason != reason:  # reported once
            self.history.event("Warning", reason, why, now.wall)
            self.phase_reason = reason
            self._outbox.log("the lease can't be written: %s" % why)
