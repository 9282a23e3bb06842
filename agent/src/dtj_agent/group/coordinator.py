"""The group's decisions: who joins, when an attempt starts, how the job ends. Pure.

The coordinator runs in the agent that leads (election.py). Every event method takes what happened
and `now`, and returns effects. `_advance` examines the whole state after each event, so that no
order of events needs a case of its own:

    Rendezvous --all members ready, lease written--> Running
    Running    --failure or loss--> Stopping
    Stopping   --all stopped or gone--> Rendezvous
    any phase  --outcome--> Finished

The coordinator is composed of parts: `Roster` (who is connected), `Admission` (who may join),
`AttemptLifecycle` (how an attempt starts, breaks and is settled), `RestartPolicy` (what a failure
costs), `LeaseRequest` (the next attempt's number) and `Epoch` (the right to start one).
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from dtj_agent.group import outcome, waiting
from dtj_agent.group.admission import Admission
from dtj_agent.group.attempt import Attempt
from dtj_agent.group.effects import Effect, Outbox
from dtj_agent.group.ending import Ending
from dtj_agent.group.epoch import Epoch
from dtj_agent.group.formation import Formation
from dtj_agent.group.goodput import GoodputTracker
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.lease_request import LeaseRequest
from dtj_agent.group.lifecycle import PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, AttemptLifecycle
from dtj_agent.group.messages import DONE, FINISHED, IDLE, Message, Now
from dtj_agent.group.restart_policy import Fail
from dtj_agent.group.roster import Peer, Roster, listed
from dtj_agent.group.success_policy import SuccessPolicy
from dtj_agent.group.witnesses import Witnesses
from dtj_contract.names import Reason
from dtj_contract.operator_message import OperatorMessage

LOG_SECONDS = 30.0
"""Between two log lines about what the group waits for."""
HISTORY_SECONDS = 0.5
"""Between two changes of the history that all members are sent: n members may each cause one at the same time."""


class Coordinator:
    """Decides for the whole group.

    `history`: what this agent remembers at its start; `final`: the outcome, if any; `ordinal`: its pod's.
    """

    def __init__(self, spec: GroupSpec, history: History, final: Optional[Message], now: Now, ordinal: int = 0) -> None:
        self.spec = spec
        self.ordinal = ordinal
        self.outcome = final
        self.outbox = Outbox()
        self.roster = Roster(spec)
        self.lifecycle = AttemptLifecycle(spec, self.roster, history, self.outbox, now)
        self.policy = self.lifecycle.policy
        self._success = SuccessPolicy(spec.success_policy)
        witnesses = Witnesses(self.roster)
        self.formation = Formation(spec, self.roster, witnesses, self.outbox, now)
        self.ending = Ending(spec, self.formation, self.roster, witnesses, self.outbox)
        self.lease = LeaseRequest()
        self.epoch = Epoch(self.roster, witnesses, history, spec.attempt_floor)
        self._admission = Admission(spec, self.roster)
        self.hands_over = True
        """Whether this agent leaves a group that has started nothing to the lowest ordinal."""
        self._gathering_since = now.mono
        self._log_at = now.mono + LOG_SECONDS
        self._sent_revision = history.revision
        self._failed: Optional[Fail] = None
        """The failure that ends the job, unless others continue it."""
        self._send_after = now.mono
        """Monotonic time from which a change of the history is sent at once."""
        if final is not None:
            self.lifecycle.finish(str(final["reason"]))

    # --- the state as others see it -------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        return self.lifecycle.phase

    @property
    def phase_reason(self) -> str:
        return self.lifecycle.phase_reason

    @property
    def goodput(self) -> GoodputTracker:
        return self.lifecycle.goodput

    @property
    def size(self) -> int:
        """The pods of the attempt, or of the next one; 0 if that is unknown."""
        return self.roster.size if self.phase == PHASE_RENDEZVOUS else len(self.lifecycle.attempt.node_ranks)

    @property
    def history(self) -> History:
        """The job's memory; members have copies."""
        return self.lifecycle.history

    @property
    def peers(self) -> Dict[int, Peer]:
        """The connected agents, by ordinal."""
        return self.roster.peers

    @property
    def waiting_for(self) -> List[int]:
        """The ordinals without which no attempt can start."""
        return self.roster.missing() if self.phase == PHASE_RENDEZVOUS else []

    def phase_message(self, now: Now) -> str:
        """Returns what the group waits for; "" if it waits for nothing that has a name."""
        return waiting.describe(self, now)

    @property
    def released(self) -> bool:
        """Whether the outcome has reached every connected agent, so that this one may exit."""
        return self.outcome is not None and self.roster.unfinished(self.ordinal) == 0

    # --- events ---------------------------------------------------------------------------------------------------

    def joined(self, conn: int, hello: Message, now: Now) -> List[Effect]:
        """Handles the hello of an agent that has connected."""
        theirs = History.from_json(hello["history"])
        rejection = self._admission.rejection(hello, now)
        if rejection:
            if not self._admission.is_repeated(rejection):
                self.outbox.log("rejected " + rejection)
            self.outbox.close(conn)
            return self.outbox.take()
        seen = theirs.attempt if self.outcome is not None else max(hello["attempt"], theirs.attempt)
        if seen > self._reached and (self.epoch.number or self.outcome is not None):
            return self._step_down("%s knows attempt %d of another one" % (hello["pod"], seen), theirs)
        old = self.peers.get(hello["ordinal"])
        if old is not None:
            self.outbox.close(old.conn)
            self._gone(old, now.mono - old.heard, now)
        newer = self.epoch.take_over(theirs, self.history) if self.phase == PHASE_RENDEZVOUS else None
        if newer is not None:
            self.lifecycle.continue_from(newer)
        self.roster.add(Peer(conn, hello, now))
        self._success.heard(hello)
        final = self.ending.met(hello, self._known_attempt) if self.outcome is None else None
        if final is not None:
            self._finish(final)
        if self.outcome is None:
            self.lifecycle.member_returned(hello, now)
            self.outbox.send(conn, self._history_message())
            self.epoch.joined(self.peers[hello["ordinal"]], self.history.attempt, self.outbox)
        self.outbox.log("agent of %s joined (%d of %d)" % (hello["pod"], len(self.peers), self.roster.pods))
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
        peer.hears(message, now)
        self._success.heard(message)
        kind = message["type"]
        if kind == "event":
            self.goodput.event(message["event"], now)
        elif kind == "leaving":
            self.lifecycle.member_leaving(peer, float(message["grace"]), now)
        elif kind == "holds":
            self.ending.is_held_by(peer.ordinal)
        elif kind == "finished":
            peer.state = FINISHED
            self.ending.is_held_by(peer.ordinal)
        elif kind == "beat" and self.lifecycle.is_current(peer, message.get("attempt", 0)):
            self.lifecycle.heard(peer, message, now)
        elif kind in ("stuck", "stopped", "done") and message["attempt"] == peer.attempt:
            self._ended(peer, message, now)
        elif kind == "progress" and self.lifecycle.is_current(peer, message["attempt"]):
            self.lifecycle.progressed(message["progress"], now)
        elif kind == "failed" and self.lifecycle.is_current(peer, message["attempt"]):
            self.lifecycle.workers_failed(peer, message["failures"], now)
        elif kind == "promised" and self.epoch.promised(peer, message, self._known_attempt, self.outbox, now):
            taken = None if message["granted"] else max(message["known"], message["attempt"])
            return self.lease_done(message["attempt"], taken, None, now)
        return self._advance(now)

    def lease_done(self, attempt: int, taken: Optional[int], error: Optional[str], now: Now) -> List[Effect]:
        """Handles the volume's answer: `attempt` is leased if `taken` and `error` are None.

        `taken`: the file held this number >= `attempt` already; `error`: the file can't be used.
        """
        self.epoch.asked = 0
        self.epoch.lease_taken(taken, now)
        if self.lease.answered(attempt, taken, error, now):
            # An agent that joined meanwhile may know a later attempt, or have promised not to start this one.
            known = max(self._known_attempt, self.roster.greatest_promise - 1)
            is_ready = self.roster.is_whole and not self.lifecycle.is_held_back(self.ordinal, now)
            if self.phase == PHASE_RENDEZVOUS and is_ready and attempt > known and not self._is_charged_out(now):
                self._start(attempt, self.roster.ready(), now)
        elif self.lease.is_replaced:
            waiting.report_lease_trouble(self, Reason.LEASE_LOST, str(self.lease.trouble), now)
            return self._step_down(str(self.lease.trouble), None)
        elif error is not None:
            waiting.report_lease_trouble(self, Reason.CHECKPOINT_VOLUME_UNAVAILABLE, error, now)
        return self._advance(now)

    def heard_of(self, attempt: int, now: Now) -> List[Effect]:
        """Handles the report of a member that is linked elsewhere and knows of `attempt`."""
        self.epoch.heard_of(attempt)
        if self.epoch.number and attempt > self._reached and self.outcome is None:
            return self._step_down("another coordinator of this job has started attempt %d" % attempt, None)
        return self._advance(now)

    def handed_over(self, message: OperatorMessage, now: Now) -> List[Effect]:
        """Handles what the operator knows: the job's budget, and why pods were lost. The end of a job stays its end."""
        if self.outcome is None:
            self.lifecycle.take_budget(message.budget)
            self.formation.take_size(message.size, self.history)
            for lost in message.lost_pods:
                self.lifecycle.pod_explained(lost, now)
        return self._advance(now)

    def tick(self, now: Now) -> List[Effect]:
        """Handles the passing of time; called about once a second."""
        if self.phase in (PHASE_RENDEZVOUS, PHASE_STOPPING) and now.mono >= self._log_at:
            self._log_at = now.mono + LOG_SECONDS
            self.outbox.log(self.phase_message(now) or "waiting for the lease of the next attempt")
        if self.spec.has_volume and self.lease.is_overdue(now):
            waiting.report_lease_trouble(self, Reason.CHECKPOINT_VOLUME_UNAVAILABLE, str(self.lease.trouble), now)
        self.lifecycle.give_up_overdue(now)
        self.lifecycle.look_for_hang(now)
        self.lifecycle.look_for_stragglers(now)
        if self.epoch.teach(self._known_attempt, self.outbox, now):
            return self.lease_done(self.epoch.asked, None, None, now)
        return self._advance(now)

    def _step_down(self, why: str, theirs: Optional[History]) -> List[Effect]:
        self.outbox.step_down(why, None if theirs is None else theirs.to_json())
        return self.outbox.take()

    def _gone(self, peer: Peer, silence: float, now: Now) -> None:
        self.roster.remove(peer, now)
        self.epoch.left(peer)
        if self.outcome is None:
            self.outbox.log("agent of %s is gone (silent for %.2f s)" % (peer.pod, silence))
            self.lifecycle.member_lost(peer, silence, now)

    def _ended(self, peer: Peer, message: Message, now: Now) -> None:
        if message["type"] == "stuck":
            return self.lifecycle.member_stuck(peer, message["what"][:500], now)
        peer.state, peer.port = (DONE if message["type"] == "done" else IDLE), message["port"]
        if peer.state == DONE and self.lifecycle.is_current(peer, message["attempt"]):
            self.lifecycle.attempt.done.add(peer.ordinal)
        return None

    # --- what follows ---------------------------------------------------------------------------------------------

    def _advance(self, now: Now) -> List[Effect]:
        if self.outcome is None and self._success.is_met(self.lifecycle, self._known_attempt):
            self._succeed(now)
        if self.phase == PHASE_RUNNING:
            self.lifecycle.resize(self.formation.due(self.lifecycle.attempt, self.history, now), now)
        if self.lifecycle.is_stopped:
            self._settle(now)
        if self.phase == PHASE_RENDEZVOUS:
            self._gather(now)
        if self.outcome is not None:
            self.ending.inform(self.outcome, now)
        elif now.mono >= self._send_after:
            self._send_history(now)
        return self.outbox.take()

    def _send_all(self, peers: Dict[int, Peer], message: Message) -> None:
        for peer in peers.values():
            self.outbox.send(peer.conn, message)

    def _send_history(self, now: Now) -> None:
        if self.history.revision != self._sent_revision:
            self._sent_revision, self._send_after = self.history.revision, now.mono + HISTORY_SECONDS
            self._send_all(self.peers, self._history_message())

    def _history_message(self) -> Message:
        return {"type": "history", "history": self.history.to_json(), "epoch": self.epoch.number}

    def _settle(self, now: Now) -> None:
        self._failed = self._failed or self.lifecycle.settle(now)
        if self._failed is not None:
            self._fail(self._failed, now)
        else:
            self.formation.settled(self.lifecycle.attempt.lost, now)
            self._gathering_since, self._log_at = now.mono, now.mono + LOG_SECONDS

    @property
    def _known_attempt(self) -> int:
        """The greatest attempt that any agent here remembers."""
        floor = self.spec.attempt_floor - 1
        return max(floor, self.history.attempt, self.epoch.later, self.roster.greatest_attempt)

    def _gather(self, now: Now) -> None:
        """Requests the lease of the next attempt once all its members are ready."""
        self.formation.gather(self.history, now)
        whole = self.roster.is_whole
        last = self.history.attempt
        found = self.ending.found(self._known_attempt)
        if found is not None:
            return self._decide(found, now) if self.ending.may_end(now) else None
        if last and self.formation.have_done(self.history):
            # The coordinator was away when the last of them finished; their work is complete.
            self.lifecycle.attempt = Attempt(last, self.formation.members(self.history), self.spec.processes)
            return self._succeed(now)
        # A coordinator that has started nothing may be one of two: the others decide whether it may end the job.
        is_sure = self.epoch.number > 0 or (whole and self.epoch.is_vouched(now))
        # With a volume the lease, too, shows whether others have continued it.
        is_fenced = self.epoch.number > 0 or not self.spec.has_volume or self.lease.is_granted
        if is_sure and is_fenced and self._is_charged_out(now):
            return None
        is_held_back = self.lifecycle.is_held_back(self.ordinal, now) or self.epoch.is_outrun(self.history.attempt, now)
        if not whole:
            self.lifecycle.gathering("schedule", now)
        elif not (is_held_back or (self.policy.deferred is not None and not is_sure)):
            self.lifecycle.gathering("rendezvous", now)
            if self.formation.is_variable and self.hands_over and not last and self.roster.first < self.ordinal:
                # A leader that is in no attempt would be lost for nothing: a spare, a pod that is scaled away.
                self.hands_over = False
                return self.outbox.step_down("%s is the first of the group" % self.peers[self.roster.first].pod, None)
            self._request_number(now)
        speaks_for_all = not self.formation.is_variable or self.roster.is_majority(self.peers)
        if speaks_for_all and 0 < self.spec.rendezvous_timeout < now.mono - self._gathering_since:
            text = "no attempt could start within %.0f s: %s" % (self.spec.rendezvous_timeout, self.phase_message(now))
            return self._end(outcome.FAILED, Reason.RENDEZVOUS_TIMEOUT, text, None, now)
        return None

    def _request_number(self, now: Now) -> None:
        """Requests the next attempt's number, which no other coordinator gets."""
        attempt = self.lease.request(max(self._known_attempt, self.roster.greatest_promise), now)
        if attempt is None:
            return
        self._send_history(now)  # what the restart costs must outlive this agent
        if self.spec.has_volume:
            self.outbox.write_lease(attempt)
        else:
            self.epoch.request(attempt)
            self.epoch.ask(self.outbox)

    def _start(self, attempt: int, chosen: List[Peer], now: Now) -> None:
        self._failed = None
        self.epoch.started(attempt, chosen, self.outbox)
        self.ending.started()
        self.formation.starting(chosen, self.lifecycle.due_recovery(now), self.history, now)
        self.lifecycle.start(attempt, chosen, {"epoch": self.epoch.number, "leader": self.ordinal}, now)
        self._sent_revision = self.history.revision
        self._send_all(self.roster.in_state(IDLE), self._history_message())
        self.outbox.log("attempt %d starts on %s" % (attempt, listed([peer.pod for peer in chosen], len(chosen))))

    # --- the job ends ---------------------------------------------------------------------------------------------

    @property
    def _reached(self) -> int:
        """The last attempt whose end this coordinator knows or decides."""
        return max(self.history.attempt, 0 if self.outcome is None else outcome.ended_attempt(self.outcome))

    def _succeed(self, now: Now) -> None:
        self._end(outcome.SUCCEEDED, *self._success.describe(self.lifecycle.attempt), None, now)

    def _is_charged_out(self, now: Now) -> bool:
        """Charges the deferred failure, if any. Returns whether it ends the job, now or soon."""
        failed = self.lifecycle.charge_deferred(now)
        if failed is not None:
            self._fail(failed, now)
        return failed is not None

    def _fail(self, why: Fail, now: Now) -> None:
        if self.ending.may_end(now) and not self.epoch.may_have_missed(self.history.attempt, now):
            self._end(outcome.FAILED, why.reason, why.message, why.failure, now)

    def _end(self, result: str, reason: str, message: str, failure: Optional[Dict[str, Any]], now: Now) -> None:
        """Ends the job, unless another coordinator continues it."""
        if self.epoch.later > self._reached:
            self.lifecycle.phase = PHASE_RENDEZVOUS
            return
        self.lifecycle.ended(result == outcome.SUCCEEDED, now)
        uid, floor = self.spec.uid, self.spec.attempt_floor
        self._decide(outcome.build(uid, result, reason, message, failure, self.history, now.wall, floor), now)

    def _decide(self, final: Message, now: Now) -> None:
        """Ends the job, by the outcome that an agent here holds already if one does."""
        final = self.ending.found(self._known_attempt) or final
        self._finish(final)
        self.ending.decided(final, now)

    def _finish(self, final: Message) -> None:
        self.outcome = final
        self.lifecycle.finish(str(final.get("reason")))
        self.outbox.log("the job is finished: %s, %s: %s" % outcome.summary(final))
