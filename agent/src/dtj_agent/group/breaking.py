"""How an attempt breaks: a worker fails, a member is lost, comes back, or can't be stopped. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional

from dtj_agent.group import outcome
from dtj_agent.group.budget import RestartBudget
from dtj_agent.group.effects import Peer
from dtj_agent.group.group_state import NEVER, PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, SAY_SECONDS, GroupState
from dtj_agent.group.history import number
from dtj_agent.group.messages import DONE, RUNNING, STOPPING, STUCK, Message, Now
from dtj_agent.group.recovery import POD, Recovery
from dtj_contract import names
from dtj_contract.names import Reason


class Breaking(GroupState):
    """From Running to Rendezvous, by way of Stopping."""

    # --- peers come and go ----------------------------------------------------------------------------------------

    def _gone(self, peer: Peer, silence: float, now: Now) -> None:
        self.roster.remove(peer, now)
        if self.outcome is not None:
            return
        self._log("agent of %s is gone (silent for %.2f s)" % (peer.pod, silence))
        if self.attempt.needs(peer) and self.phase in (PHASE_RUNNING, PHASE_STOPPING):
            if peer.state == STUCK:  # that is why it goes, and is what counts
                return
            self.attempt.lose(peer)
            self._stop(POD, Reason.POD_LOST, silence, self.rules.stop_grace, now)
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
        if hello["crashed"]:  # its agent died, not the pod
            failure = self._explain(hello, Reason.AGENT_CRASHED, now)
            self._charge = None if recovery.counted else failure
        elif loss is not None and loss.incarnation == hello["incarnation"] and recovery.reason == Reason.POD_LOST:
            failure = self._explain(hello, Reason.CONNECTION_LOST, now)
            if not recovery.flapped:
                recovery.flapped = True
                self._flapped(failure, now)
        if isinstance(broke.get("step"), int):
            recovery.last_step = max(broke["step"], recovery.last_step or 0)

    def _flapped(self, failure: Dict[str, Any], now: Now) -> None:
        assert self.recovery is not None
        losses = self._flapping.lost(self.history, now.wall)
        if self._flapping.is_counted(losses) and not self.recovery.counted:
            self._charge = failure
        wait = self._backoff.lost(losses, now.mono)
        if wait:
            self._log("%d connections lost without progress: the next attempt waits %.0f s" % (losses, wait))

    def _explain(self, hello: Message, reason: str, now: Now) -> Dict[str, Any]:
        """A member that was lost is back, and its return tells why it had gone."""
        assert self.recovery is not None
        self.recovery.reason = self.phase_reason = reason
        failure = self.attempt.return_failure(hello, reason, now)
        self.history.failure(failure)
        return failure

    # --- an attempt breaks ----------------------------------------------------------------------------------------

    def _stop(self, kind: str, reason: str, detect: float, grace: float, now: Now) -> None:
        """End the attempt everywhere. Called again while it ends: the shorter grace holds, a lost pod is the stronger reason."""
        if self.phase == PHASE_RUNNING:
            self.phase, self.phase_reason = PHASE_STOPPING, reason
            self.recovery = Recovery(kind, reason, now, detect, self.ledger.last_step)
            self._charge, self._stopped_by, self._shortest_grace = None, now.mono, NEVER
            self.ledger.ended(now)
            self._log("attempt %d stops: %s" % (self.history.attempt, reason))
        elif kind == POD and self.recovery is not None:
            self.recovery.kind, self.recovery.reason, self.phase_reason = POD, reason, reason
        self._stopped_by = max(self._stopped_by, now.mono + grace + 2 * names.STUCK_SECONDS)
        shorter, self._shortest_grace = grace < self._shortest_grace, min(grace, self._shortest_grace)
        for ordinal in self.attempt.node_ranks:
            state = self.peers[ordinal].state if ordinal in self.peers else None
            # Who is stopping already hears of nothing but a shorter grace: all ranks fail of one cause, and n failures
            # answered to n members each would drown the group.
            if state in (RUNNING, DONE) or (state == STOPPING and shorter):
                self._send(ordinal, {"type": "stop", "attempt": self.history.attempt, "grace": grace})
                self.peers[ordinal].state = STOPPING

    def _stuck(self, peer: Peer, what: str, now: Now) -> None:
        """SIGKILL does not end its workers: it is as good as lost, and the group goes on when its pod is replaced.

        What is stuck there runs no instruction any more: the signal is the first thing that it gets when it wakes.
        """
        peer.state = STUCK
        known = self.attempt.lost.get(peer.ordinal)
        if known is not None and known.reason == Reason.WORKER_STUCK:
            return  # told again: the deadline of the others is not moved by it
        if self.phase in (PHASE_RUNNING, PHASE_STOPPING) and peer.ordinal in self.attempt.node_ranks:
            self.attempt.lose(peer, Reason.WORKER_STUCK, what)
            self._stop(POD, Reason.WORKER_STUCK, 0.0, self.rules.stop_grace, now)

    def _settle(self, now: Now) -> None:
        """Everyone has stopped or is gone: now that all evidence is in, say why, and whether there is a next attempt."""
        assert self.recovery is not None
        self.recovery.last_step = self.ledger.last_step  # what was reported while the workers stopped counts too,
        self.ledger.broken()  # and a checkpoint that they still wrote
        root = self.attempt.root_failure(self.history.established, now)
        pod_left = bool(self.attempt.lost) or self.recovery.kind == POD
        if root is not None and (not pod_left or root["reason"] in names.PERMANENT):
            self.history.failure(root)
            self.recovery.reason = self.phase_reason = root["reason"]
            if root["reason"] in names.PERMANENT:
                return self._decide(outcome.FAILED, root["reason"], root["message"], root, now)
            if root["reason"] == Reason.FILE_NOT_FOUND and not self._is_tried_again(root, now):
                return None
            if not self._count(root["message"], root, now):
                return None
            wait = self._backoff.failed(self.ledger.stepped, self.ledger.lived, now.mono)
            if wait:
                self._log("the attempt ended before its first step: the next one waits %.0f s" % wait)
        for failure in self.attempt.loss_failures(now):
            self.history.failure(failure)
            if failure["reason"] == Reason.WORKER_STUCK:  # neither an eviction nor a lost node: nobody but the training did it
                self._charge = failure
        self.phase = PHASE_RENDEZVOUS
        self._gathering_since, self._say_at = now.mono, now.mono + SAY_SECONDS
        self.recovery.enter("schedule", now)
        return None

    def _is_tried_again(self, root: Dict[str, Any], now: Now) -> bool:
        """A file that is missing may be there in a moment, or never: a few attempts, the first of which says so."""
        tries = self.history.ends_in_a_row(Reason.FILE_NOT_FOUND)
        if tries >= names.FILE_NOT_FOUND_TRIES:
            text = "%s (%d attempts in a row)" % (root["message"], tries)
            self._decide(outcome.FAILED, Reason.FILE_NOT_FOUND, text, root, now)
            return False
        if tries == 1:
            text = "%s; tried again, %d attempts in all" % (root["message"], names.FILE_NOT_FOUND_TRIES)
            self.history.event("Warning", Reason.FILE_NOT_FOUND, text, now.wall)
        return True

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
        self._charge = None
        return True
