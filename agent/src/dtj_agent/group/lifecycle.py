"""The life of an attempt: it starts, breaks, is stopped and settled. Pure.

    Rendezvous --start--> Running --failure or loss--> Stopping --all stopped or gone: settle--> Rendezvous

`restart_policy` decides what follows a broken attempt; `stopping` ends it on all its members.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from dtj_agent.group import stragglers
from dtj_agent.group.attempt import Attempt
from dtj_agent.group.container_kills import ContainerKills
from dtj_agent.group.effects import Outbox
from dtj_agent.group.formation import later_size
from dtj_agent.group.goodput import GoodputTracker
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.hang_guard import HangGuard
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import RUNNING, STOPPING, STUCK, Message, Now
from dtj_agent.group.moving_pod import MovingPod
from dtj_agent.group.recovery_timer import IN_PLACE, POD, RESIZE, RecoveryTimer
from dtj_agent.group.restart_policy import Decision, Fail, RestartPolicy, later_budget
from dtj_agent.group.root_cause import Json
from dtj_agent.group.roster import Peer, Roster
from dtj_agent.group.stopping import AttemptStop
from dtj_agent.group.stragglers import SlowRanks
from dtj_contract import agent_status
from dtj_contract.names import Reason
from dtj_contract.operator_message import LostPod, RestartBudget

PHASE_RENDEZVOUS, PHASE_RUNNING, PHASE_STOPPING, PHASE_FINISHED = agent_status.PHASES

EXPLANATION_SECONDS = 60.0
"""The operator repeats what still holds every few seconds; an old cause is not that of the next loss."""
KEEP_EXPLANATIONS = 64
"""Pods whose loss the operator has explained, before the loss is heard of."""


class AttemptLifecycle:
    """Follows one attempt after the other. `history`: what this agent remembers at its start."""

    def __init__(self, spec: GroupSpec, roster: Roster, history: History, outbox: Outbox, now: Now) -> None:
        self.phase = PHASE_RENDEZVOUS
        self.phase_reason: str = Reason.RENDEZVOUS
        self.goodput = GoodputTracker(history)
        self.policy = RestartPolicy(spec)
        self._kills = ContainerKills(spec.rules, self.policy)
        self.attempt = Attempt.remembered(history, spec.processes)
        """The current attempt, or the last one."""
        self.guard = HangGuard(spec.hang)
        self._slow = SlowRanks(spec.rules, roster, self.guard)
        self.recovery: Optional[RecoveryTimer] = None
        """The last recovery; it is open until the first step after the failure."""
        self._spec = spec
        self._roster = roster
        self._outbox = outbox
        self._stopping = AttemptStop(self.attempt, roster, now)
        self._lost_leader: Optional[int] = None
        """The ordinal that led the attempt from which members have returned, until its loss is listed."""
        self._broke_at = 0.0
        self._explanations: Dict[Tuple[str, str], Tuple[LostPod, float]] = {}
        """Why Kubernetes ended a pod, and when the operator last handed that over, by name and address."""
        self.moving = MovingPod(roster, outbox, spec.has_other_nodes)

    @property
    def history(self) -> History:
        """The job's memory; members have copies."""
        return self.goodput.history

    def continue_from(self, history: History) -> None:
        """Replaces the history by a newer one, which a member remembers."""
        if self.history.budget is not None:
            history.budget = later_budget(self.history.budget, history.budget)
        if self.history.size is not None:
            history.size = later_size(self.history.size, history.size)
        self.goodput.history = history
        if self.attempt.number != history.attempt:
            self.attempt = Attempt.remembered(history, self._spec.processes)

    # --- an attempt starts ----------------------------------------------------------------------------------------

    def gathering(self, phase: str, now: Now) -> None:
        """Enters `phase` (schedule or rendezvous) of the open recovery."""
        if self.recovery is not None and self.recovery.attempt == 0:
            self.recovery.enter(phase, now)

    def due_recovery(self, now: Now) -> Optional[RecoveryTimer]:
        """Returns the recovery that the next attempt ends; None before the first attempt."""
        if self.recovery is None and self.history.attempt:
            self.recovery = RecoveryTimer.after_lost_coordinator({}, self.goodput.last_step, now)
        return self.recovery

    def start(self, attempt: int, members: List[Peer], leadership: Message, now: Now) -> None:
        history = self.history
        self.moving.started(members)
        self._list_lost_leader(now)  # the group continues without it
        if self.recovery is not None:  # the coordinator before may have charged it
            self.recovery.counted = self.recovery.counted or history.charged == history.attempt
        history.attempt = attempt
        history.start_time = history.start_time or now.wall
        history.revision += 1
        self.attempt = Attempt.with_members(members, attempt, self._spec.processes)
        self.goodput.started(now)
        self.guard.started(self.attempt.world_size)
        self._slow.started()
        if self.recovery is not None:
            self.recovery.started(attempt, history, now)
        self.phase, self.phase_reason = PHASE_RUNNING, self.recovery.reason if self.recovery else Reason.WORKERS_RUNNING
        self.attempt.start(members, history, leadership, self._outbox, self._spec.lists_members)

    # --- what happens to its members ------------------------------------------------------------------------------

    def is_current(self, peer: Peer, attempt: int) -> bool:
        """Returns whether `attempt` runs or stops now with `peer` as a member."""
        current = attempt == self.attempt.number and peer.ordinal in self.attempt.node_ranks
        return current and self.phase in (PHASE_RUNNING, PHASE_STOPPING)

    def progressed(self, report: Message, now: Now) -> None:
        led_here = self.recovery is not None and self.recovery.attempt == self.history.attempt
        self.goodput.report(report, self.recovery if led_here else None, now)

    def heard(self, peer: Peer, message: Message, now: Now) -> None:
        """Takes what a heartbeat holds of the member's ranks."""
        if self.phase == PHASE_RUNNING and self.guard.heard(peer, message, now):
            self.look_for_hang(now)

    def look_for_hang(self, now: Now) -> None:
        """Breaks the attempt if it hangs, once the evidence is there; or reports it, by the job's policy."""
        if self.phase != PHASE_RUNNING:
            return
        peers = self._roster.peers
        running = (ordinal for ordinal in self.attempt.node_ranks if ordinal not in self.attempt.done)
        members = [peers[ordinal] for ordinal in running if ordinal in peers]
        if self.guard.suspects(members, now):
            self._outbox.log("attempt %d makes no progress: asking for the ranks' stacks" % self.attempt.number)
            for peer in members:
                self._outbox.send(peer.conn, {"type": "beat", "stacks": self.attempt.number})
        hint = self.guard.hint(members, now)
        if hint:
            self.history.event("Warning", Reason.NO_SIGN_OF_LIFE, hint, now.wall)
        found = self.guard.finding(members, self.attempt.number, now)
        if found is None:
            return
        self._outbox.log("%s\n%s" % (found.failure["message"], found.failure["stack"]))
        if self.guard.breaks:
            self.attempt.blame(found.failure)
            # A rank that hangs handles no SIGTERM, and the others wait for it in a collective.
            self._break(IN_PLACE, Reason.WORKER_HUNG, found.hang.seconds, 0.0, now)
        else:
            self.history.event("Warning", Reason.WORKER_HUNG, found.failure["message"], now.wall)

    def look_for_stragglers(self, now: Now) -> None:
        """Reports each rank that has become slow, once; stops the attempt for one that a rule replaces."""
        failure = self._slow.look(self.attempt.number, self.history, now) if self.phase == PHASE_RUNNING else None
        if failure is not None:
            self._outbox.log(failure["message"])
            self.attempt.blame(failure)
            self._break(IN_PLACE, Reason.STRAGGLER, 0.0, stragglers.GRACE_SECONDS, now)

    def stragglers(self) -> List[Message]:
        """Returns the slowest ranks of the running attempt: rank, pod, node, and ratio to the median rank."""
        return self._slow.rows() if self.phase == PHASE_RUNNING else []

    def workers_failed(self, peer: Peer, failures: List[Any], now: Now) -> None:
        self.attempt.fail(peer, failures)
        peer.state = STOPPING if peer.state == RUNNING else peer.state
        self._break(IN_PLACE, Reason.WORKER_FAILED, 0.0, self._spec.stop_grace, now)

    def member_lost(self, peer: Peer, silence: float, now: Now) -> None:
        """Breaks the attempt if it needs the peer, which was silent for `silence` seconds."""
        if self.attempt.needs(peer) and self.phase in (PHASE_RUNNING, PHASE_STOPPING):
            if peer.state == STUCK:  # counted as stuck already
                return
            self.attempt.lose(peer)
            self._break(POD, Reason.POD_LOST, silence, self._spec.stop_grace, now)
        elif self.recovery is not None and self.phase == PHASE_RENDEZVOUS and not self._roster.is_whole:
            self.recovery.kind = POD  # lost while the group re-forms

    def member_leaving(self, peer: Peer, grace: float, now: Now) -> None:
        """Stops the attempt with the grace of the peer's pod, which is terminating for whatever reason.

        All ranks get SIGTERM now, so that a trainer can still write a checkpoint together.
        """
        peer.leaving = True
        if self.phase == PHASE_RUNNING and self.attempt.needs(peer):
            self.attempt.lose(peer)
            self._break(POD, Reason.POD_LOST, 0.0, grace, now)

    def resize(self, reason: str, now: Now) -> None:
        """Stops the attempt, with the grace of a terminating pod, to continue with more or fewer pods."""
        if reason:
            self._break(RESIZE, reason, 0.0, self._spec.grace, now)

    def member_stuck(self, peer: Peer, detail: str, now: Now) -> None:
        """Gives up a member whose workers survive SIGKILL: the group restarts in a new pod.

        The stuck processes run no instruction any more: the signal is the first thing that they get
        when they wake.
        """
        peer.state = STUCK
        known = self.attempt.lost.get(peer.ordinal)
        if known is not None and known.reason == Reason.WORKER_STUCK:
            return  # a repeated report does not move the others' deadline
        if self.phase in (PHASE_RUNNING, PHASE_STOPPING) and peer.ordinal in self.attempt.node_ranks:
            self.attempt.lose(peer, Reason.WORKER_STUCK, detail)
            self._break(POD, Reason.WORKER_STUCK, 0.0, self._spec.stop_grace, now)

    def member_returned(self, hello: Message, now: Now) -> None:
        """Corrects the cause of the recovery if the hello of a returned member shows why it went."""
        self._correct_cause(hello, now)
        leader = None if self._lost_leader is None else self._roster.peers.get(self._lost_leader)
        if leader is not None and leader.attempt:
            self._lost_leader = None
        elif leader is not None:  # its pod is new
            self._list_lost_leader(now)

    def _list_lost_leader(self, now: Now) -> None:
        ordinal, self._lost_leader = self._lost_leader, None
        if ordinal is not None and not self.history.lists(self.attempt.number, ordinal, Reason.POD_LOST):
            pod = "%s-%d" % (self._spec.job, ordinal)
            self._account(self.attempt.leader_failure(ordinal, pod, now), now)

    def _correct_cause(self, hello: Message, now: Now) -> None:
        loss = self.attempt.lost.pop(hello["ordinal"], None)
        broke = hello.get("interrupted")
        if not isinstance(broke, dict) or broke.get("attempt") != self.history.attempt:
            return
        if self.recovery is None and self.phase == PHASE_RENDEZVOUS:
            # The coordinator itself was lost. The hellos of its members report when they stopped.
            self.recovery = RecoveryTimer.after_lost_coordinator(broke, self.goodput.last_step, now)
            self.phase_reason = Reason.POD_LOST
            self._lost_leader = int(number(broke.get("leader")))
        recovery = self.recovery
        if recovery is None or recovery.attempt:
            return
        same_agent = loss is not None and loss.incarnation == hello["incarnation"]
        if hello.get("rebooted") is True:
            self._explain(recovery, hello, Reason.NODE_LOST, now)
        elif hello["crashed"]:  # its agent died, not the pod
            killed = loss is not None and loss.reason == Reason.OOM_KILLED
            killed = killed or self.history.lists(broke["attempt"], hello["ordinal"], Reason.OOM_KILLED)
            self._explain(recovery, hello, Reason.OOM_KILLED if killed else Reason.AGENT_CRASHED, now)
            if not killed:
                self._kills.agent_crashed(now)
        elif hello.get("terminated") is True:
            self._explain(recovery, hello, Reason.AGENT_TERMINATED, now)
        elif same_agent and recovery.reason == Reason.POD_LOST:
            self._explain(recovery, hello, Reason.CONNECTION_LOST, now)
        if isinstance(broke.get("step"), int):
            recovery.last_step = max(broke["step"], recovery.last_step or 0)

    def _explain(self, recovery: RecoveryTimer, hello: Message, reason: str, now: Now) -> None:
        recovery.reason = self.phase_reason = reason
        self._account(self.attempt.return_failure(hello, reason, now), now)

    # --- what the operator hands over -----------------------------------------------------------------------------

    def take_budget(self, budget: Optional[RestartBudget]) -> None:
        """Takes the budget that the job's spec has now."""
        changed = self.policy.take_budget(budget, self.history)
        if changed:
            self._outbox.log(changed)

    def pod_explained(self, lost: LostPod, now: Now) -> None:
        """Remembers why Kubernetes ended a pod, and corrects the cause of the recovery if that pod was lost."""
        if lost.reason == Reason.OOM_KILLED:
            return self._container_killed(lost, now)
        self._explanations[lost.pod, lost.address] = lost, now.mono
        while len(self._explanations) > KEEP_EXPLANATIONS:
            del self._explanations[next(iter(self._explanations))]
        if self.phase != PHASE_RENDEZVOUS or self.recovery is None or self.recovery.attempt:
            return None
        ordinal = self.attempt.explain(lost)
        if ordinal is None:
            return None
        if self.recovery.reason == Reason.POD_LOST:
            self.recovery.reason = self.phase_reason = lost.reason
        for failure in self.attempt.loss_failures(now):
            if failure["ordinal"] == ordinal:
                self._account(failure, now)
        return None

    def _container_killed(self, kill: LostPod, now: Now) -> None:
        """Corrects the cause of an agent's crash: its container had run out of memory."""
        if self.recovery is None or self.recovery.attempt or not self._kills.is_new(kill):
            return
        failure = self.attempt.explain_kill(kill, now)
        if failure is None:
            return
        self._kills.take(kill)
        if self.recovery.reason in (Reason.POD_LOST, Reason.AGENT_CRASHED):
            self.recovery.reason = self.phase_reason = kill.reason
        if failure["ordinal"] not in self.attempt.lost or self.phase == PHASE_RENDEZVOUS:
            self._account(failure, now)  # otherwise with the others, once all have stopped

    # --- it breaks, stops and is settled --------------------------------------------------------------------------

    def _break(self, kind: str, reason: str, detect: float, grace: float, now: Now) -> None:
        """Stops the attempt everywhere.

        Called again while the attempt stops: the shorter grace holds, and a lost pod is the
        stronger reason.
        """
        if self.phase == PHASE_RUNNING:
            self.phase, self.phase_reason = PHASE_STOPPING, reason
            self._broke_at = now.mono
            self.recovery = RecoveryTimer(kind, reason, now, detect, self.goodput.last_step)
            self.policy.attempt_broke()
            self._stopping = AttemptStop(self.attempt, self._roster, now)
            self.goodput.ended(now)
            self._outbox.log("attempt %d stops: %s" % (self.history.attempt, reason))
        elif kind == POD and self.recovery is not None:
            self.recovery.kind, self.recovery.reason, self.phase_reason = POD, reason, reason
        self._stopping.request(grace, self._outbox, now)

    @property
    def is_stopped(self) -> bool:
        """Whether the stopping attempt has no member left whose workers are still stopping."""
        return self.phase == PHASE_STOPPING and not self._stopping.is_pending

    @property
    def stopping(self) -> List[Peer]:
        """The members whose workers are still stopping, by ordinal."""
        return self._stopping.pending() if self.phase == PHASE_STOPPING else []

    def give_up_overdue(self, now: Now) -> None:
        """Treats members as stuck that have not reported in time what became of their workers."""
        if self.phase == PHASE_STOPPING and self._stopping.is_overdue(now):
            for peer in self.stopping:
                self.member_stuck(peer, "its agent has not reported what became of them", now)

    def settle(self, now: Now) -> Optional[Fail]:
        """Decides what follows, now that every member has stopped or is gone; None: a restart."""
        assert self.recovery is not None
        # Steps and a checkpoint that were reported while the workers stopped count too.
        self.recovery.last_step = self.goodput.last_step
        self.goodput.broken()
        # The ranks of a group that is stopped fail of each other's end, too.
        pod_lost = bool(self.attempt.lost) or self.recovery.kind in (POD, RESIZE)
        root = self.attempt.root_failure(self.history.established, pod_lost, now)
        if root is not None:
            self.history.failure(self.policy.apply_rules(root))
            self.recovery.reason = self.phase_reason = root["reason"]
            decision = self.policy.decide(root, self.history, now, self.goodput.stepped, self.goodput.lived)
            self._note(decision, root, now)
            if isinstance(decision, Fail):
                return decision
        for lost, heard in self._explanations.values():
            if self._broke_at - heard > EXPLANATION_SECONDS:
                continue
            if self.attempt.explain(lost) is not None and self.recovery.reason == Reason.POD_LOST:
                self.recovery.reason = self.phase_reason = lost.reason
        for failure in self.attempt.loss_failures(now):
            self._account(failure, now)
        self.phase = PHASE_RENDEZVOUS
        self.recovery.enter("schedule", now)
        return None

    def charge_deferred(self, now: Now) -> Optional[Fail]:
        """Charges the policy's deferred failure, if any; returns Fail if the budget is spent."""
        if self.policy.deferred is None or self._kills.awaits_cause(now):
            return None
        decision = self.policy.charge_deferred(self.history, now)
        self._note(decision, {}, now)
        return decision if isinstance(decision, Fail) else None

    def _account(self, failure: Json, now: Now) -> None:
        """Adds the failure of a lost member to the history and the policy's books."""
        self.history.failure(self.policy.apply_rules(failure))
        decision = self.policy.decide(failure, self.history, now, lived=self.goodput.lived)
        self._note(decision, failure, now)

    def _note(self, decision: Decision, failure: Json, now: Now) -> None:
        if isinstance(decision, Fail):
            return
        if decision.counted and self.recovery is not None:
            self.recovery.counted = True
        if decision.wait:
            self._outbox.log("%s: the next attempt waits %.0f s" % (decision.why, decision.wait))
        if decision.elsewhere:
            self.moving.request(failure.get("ordinal", -1), now)

    def is_held_back(self, leader: int, now: Now) -> bool:
        """Returns whether the next attempt has to wait although its members are ready."""
        return now.mono < self.policy.not_before or bool(self.moving.name(leader, now))

    # --- the job ends ---------------------------------------------------------------------------------------------

    def ended(self, succeeded: bool, now: Now) -> None:
        """Closes the books of the last attempt and its recovery."""
        if succeeded:
            self.goodput.succeeded(now)
        if self.recovery is not None and self.recovery.attempt:
            self.recovery.ended(self.history, now)

    def finish(self, reason: str) -> None:
        self.goodput.broken()
        self.phase, self.phase_reason = PHASE_FINISHED, reason
