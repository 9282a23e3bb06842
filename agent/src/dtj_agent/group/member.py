"""One agent's part in the group: it runs the workers of one attempt at a time, for the coordinator that it is linked to. Pure.

idle --start--> running --failure, stop, coordinator lost, SIGTERM--> stopping --all workers gone--> idle
                running --all workers exited with 0, all their children gone--> done --start--> running
                stopping --SIGKILL does not help--> stuck --all workers gone after all--> idle
any  --finish--> finished
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Union

from dtj_agent.group import failure_rules, outcome
from dtj_agent.group.effects import Log
from dtj_agent.group.history import History
from dtj_agent.group.messages import DONE, FINISHED, IDLE, PROTOCOL_VERSION, RUNNING, STOPPING, STUCK, Message, Now
from dtj_contract import names


class SendToCoordinator(NamedTuple):
    """A message to the coordinator; dropped when there is no link."""

    message: Message


class Spawn(NamedTuple):
    """Start this pod's workers."""

    attempt: int
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int


class Stop(NamedTuple):
    """SIGTERM now, SIGKILL after `grace` seconds (of several, the earliest holds); then answer `workers_gone`."""

    grace: float


class Save(NamedTuple):
    """Write `Member.saved()` to the state file."""


class Finish(NamedTuple):
    """Write the outcome for the restarted agent, the kubelet and the operator."""

    outcome: Message


class Forget(NamedTuple):
    """Remove the outcome: the job has gone on after it."""


class Exit(NamedTuple):
    code: int


Effect = Union[SendToCoordinator, Spawn, Stop, Save, Finish, Forget, Exit, Log]


class Identity(NamedTuple):
    """Who this agent is. `incarnation` is new for each process."""

    uid: str
    ordinal: int
    incarnation: str
    pod: str
    node: str
    address: str
    grace: float
    """Seconds that a pod's end leaves for the workers' own end."""
    stop_grace: float = names.STOP_GRACE_SECONDS
    """The same when the group has failed."""


class WorkerExit(NamedTuple):
    """A worker that has ended. `requested`: by our own signal, so it is no failure."""

    rank: int
    exit_code: int
    requested: bool
    log_tail: str
    oom: bool
    recorded: str = ""
    """What the worker has written to its error file."""

    def evidence(self, room: int) -> Dict[str, Any]:
        """The failure as the coordinator hears it, with `room` characters for what the worker has said."""
        recorded = self.recorded[: room // 4]
        tail = self.log_tail[-(room - len(recorded)) :]
        told = {"rank": self.rank, "exitCode": self.exit_code, "logTail": tail, "oom": self.oom}
        return {**told, "recorded": recorded} if recorded else told


class Member:
    """`saved` is what the state file of this pod held; `final` its outcome file."""

    def __init__(self, identity: Identity, saved: Dict[str, Any], final: Optional[Message]) -> None:
        self.identity = identity
        self.history = History.from_json(saved.get("history") or {})
        self.attempt = int(saved.get("attempt") or 0)
        """The greatest attempt that this pod was ever started for."""
        self.outcome = final
        self.state = FINISHED if final else (DONE if saved.get("state") == DONE else IDLE)
        self.crashed = self.state == IDLE and saved.get("state") == RUNNING
        """The agent before this one, in this same pod, died while workers ran."""
        self.linked = False
        self.leaving = False
        self.port = 0
        """MASTER_PORT if this pod gets node rank 0; held by the shell."""
        self._working: Dict[int, bool] = {}  # global rank -> still there
        self._pending_outcome: Optional[Message] = None  # the outcome that waits for the workers' end
        self._all_succeeded = False  # all workers exited with 0, what they left behind is being swept
        self._broken_at: Optional[float] = None  # when the attempt began to stop, or its coordinator was lost
        self._silence = 0.0
        self._step: Optional[int] = saved.get("step")

    # --- the link to the coordinator ------------------------------------------------------------------------------

    def connected(self, now: Now) -> List[Effect]:
        self.linked = True
        return [SendToCoordinator(self.hello(now))]

    def disconnected(self, silence: float, now: Now) -> List[Effect]:
        """The coordinator is gone: a group without it can't go on, so stop at once and wait for it."""
        self.linked, self._silence = False, silence
        if self._broken_at is None:
            self._broken_at = now.mono
        if self.state == STOPPING and not self._all_succeeded:
            return [Stop(self.identity.stop_grace)]
        if self.state != RUNNING:
            return []
        text = "the coordinator is lost (silent for %.2f s): stopping" % silence
        return [Log(text), *self._stop(self.identity.stop_grace, now)]

    @property
    def known_attempt(self) -> int:
        """The greatest attempt that this agent has heard of."""
        return max(self.attempt, self.history.attempt, outcome.attempt_of(self.outcome or {}))

    def follows(self, started: int) -> bool:
        """Go to a coordinator that calls? `started`: the last attempt that its pod has started, 0 if the pod is new.

        The one that it replaced may live on, on a node that only the control plane has lost, and calls its members back. So
        who has a coordinator leaves it for a later attempt only, or (the shell finds that out) for who has pod 0's name.
        """
        if self.linked:
            return started > self.known_attempt
        return started == 0 or started >= self.known_attempt

    def hello(self, now: Now) -> Message:
        me = self.identity
        interrupted = None
        if self.attempt:  # for a new coordinator: what broke, and when
            ago = 0.0 if self._broken_at is None else now.mono - self._broken_at
            interrupted = {"attempt": self.attempt, "silence": self._silence, "ago": ago, "step": self._step}
        return {
            "type": "hello", "version": PROTOCOL_VERSION, "uid": me.uid, "ordinal": me.ordinal, "incarnation": me.incarnation,
            "pod": me.pod, "node": me.node, "address": me.address, "port": self.port, "state": self.state,
            "attempt": self.attempt,
            "history": self.history.to_json(), "outcome": self.outcome, "crashed": self.crashed, "interrupted": interrupted,
        }  # fmt: skip

    def received(self, message: Message, now: Now) -> List[Effect]:
        kind = message["type"]
        if kind == "start":
            return self._start(message)
        if kind == "stop":
            return self._stop_asked(message, now)
        if kind == "finish":
            return self._finish(message["outcome"], now)
        if kind == "history":
            return self._learn(message["history"])
        if kind == "beat" and isinstance(message.get("live"), dict):
            self.history.apply_live(message["live"])
        return []

    # --- the workers ----------------------------------------------------------------------------------------------

    def exited(self, attempt: int, exits: List[WorkerExit], now: Now) -> List[Effect]:
        """Workers of `attempt` have ended, all that were found in one look."""
        if attempt != self.attempt or self.state not in (RUNNING, STOPPING, STUCK):
            return []
        for worker in exits:
            self._working.pop(worker.rank, None)
        failures = [worker for worker in exits if worker.exit_code != 0 and not worker.requested]
        effects: List[Effect] = []
        if failures and not self.leaving:
            room = names.MAX_EVIDENCE_CHARS // len(failures)
            evidence = [worker.evidence(room) for worker in failures]
            effects.append(SendToCoordinator({"type": "failed", "attempt": attempt, "failures": evidence}))
        if self.state == RUNNING:
            if failures:
                effects += self._stop(self.identity.stop_grace, now)
            elif not self._working:
                self._all_succeeded = True
                effects += self._stop(0.0, now)
        return effects

    def workers_stuck(self, what: str, now: Now) -> List[Effect]:
        """SIGKILL does not end them. Told again and again: a new coordinator must know it too."""
        if self.state not in (STOPPING, STUCK):
            return []
        self.state, self._all_succeeded = STUCK, False
        told: List[Effect] = [Log(what), SendToCoordinator({"type": "stuck", "attempt": self.attempt, "what": what})]
        if self._pending_outcome is not None:
            return [*told, *self._finish(self._pending_outcome, now)]
        return [*told, Exit(names.EXIT_TERMINATED)] if self.leaving else told

    def workers_gone(self, now: Now) -> List[Effect]:
        """No process of the attempt is left in this pod."""
        if self.state not in (STOPPING, STUCK):
            return []
        self.state = DONE if self._all_succeeded else IDLE
        answer = "done" if self._all_succeeded else "stopped"
        effects: List[Effect] = [
            SendToCoordinator({"type": answer, "attempt": self.attempt, "port": self.port}),
            Save(),
        ]
        if self._pending_outcome is not None:
            return effects + self._finish(self._pending_outcome, now)
        return effects + ([Exit(names.EXIT_TERMINATED)] if self.leaving else [])

    def reported(self, attempt: int, step: Optional[int]) -> None:
        """A worker of this pod has done `step`."""
        if attempt == self.attempt and step is not None:
            self._step = step

    # --- the pod --------------------------------------------------------------------------------------------------

    def terminate(self, now: Now) -> List[Effect]:
        """SIGTERM: the pod ends. Asked twice: at once."""
        if self.state == FINISHED:
            return [Exit(outcome.exit_code(self.outcome or {}))]
        again, self.leaving = self.leaving, True
        effects: List[Effect] = [] if again else [SendToCoordinator({"type": "leaving", "grace": self.identity.grace})]
        if self.state == RUNNING:
            return effects + self._stop(self.identity.grace, now)
        if self.state == STOPPING:
            return [*effects, Stop(0.0 if again else self.identity.grace)]  # of a longer grace only this much is left
        return [*effects, Exit(names.EXIT_TERMINATED)]

    def saved(self) -> Dict[str, Any]:
        """What the next agent in this pod must know."""
        # `stopping` is saved as running: an agent that dies then has left its workers to SIGKILL all the same.
        state = RUNNING if self.state in (STOPPING, STUCK) and not self.leaving else self.state
        if self.leaving and state != DONE:
            state = IDLE  # an announced end is no crash
        return {
            "uid": self.identity.uid,
            "attempt": self.attempt,
            "state": state,
            "step": self._step,
            "history": self.history.to_json(),
        }

    # --- transitions ----------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> List[Effect]:
        attempt = message["attempt"]
        if attempt <= self.attempt or self.state not in (IDLE, DONE) or self.leaving:
            why = "attempt %d is not started: this pod is %s, at attempt %d" % (attempt, self.state, self.attempt)
            if self.leaving:
                return [Log(why)]  # the pod's end tells the coordinator
            # It can't be, and if it is, the others must not wait for this pod's ranks.
            evidence = {
                "rank": message["nodeRank"],
                "exitCode": failure_rules.EXEC_NO_RESOURCES,
                "logTail": why,
                "oom": False,
            }
            return [Log(why), SendToCoordinator({"type": "failed", "attempt": attempt, "failures": [evidence]})]
        self.attempt, self.state, self.crashed = attempt, RUNNING, False
        self._broken_at, self._all_succeeded, self._step = None, False, None
        self.history = History.from_json(message["history"])
        return [
            Save(),
            Spawn(attempt, message["nodeRank"], message["nodes"], message["masterAddr"], message["masterPort"]),
        ]

    def spawned(self, ranks: List[int]) -> None:
        self._working = dict.fromkeys(ranks, True)

    @property
    def ranks(self) -> List[int]:
        """Those whose workers have not ended yet."""
        return list(self._working)

    def _stop_asked(self, message: Message, now: Now) -> List[Effect]:
        if message["attempt"] != self.attempt:
            return []
        if self.state == RUNNING:
            return self._stop(float(message["grace"]), now)
        if self.state == STOPPING:
            if self._all_succeeded:
                self._all_succeeded = False  # the group restarts, what was done is done again
                return []
            return [] if self.leaving else [Stop(float(message["grace"]))]
        if self.state == STUCK:
            return []
        if self.state == DONE:
            self.state = IDLE
        return [SendToCoordinator({"type": "stopped", "attempt": self.attempt, "port": self.port}), Save()]

    def _stop(self, grace: float, now: Now) -> List[Effect]:
        self.state = STOPPING
        if not self._all_succeeded:
            self._broken_at = now.mono
        return [Stop(grace)]

    def _learn(self, data: Dict[str, Any]) -> List[Effect]:
        theirs = History.from_json(data)
        if not theirs.newer_than(self.history):
            return []
        self.history = theirs
        if self.outcome is None or outcome.attempt_of(self.outcome) >= theirs.attempt:
            return [Save()]
        text = "attempt %d has begun after the outcome of attempt %d" % (
            theirs.attempt,
            outcome.attempt_of(self.outcome),
        )
        self.state, self.outcome = IDLE, None
        return [
            Log(text),
            Forget(),
            Save(),
            SendToCoordinator({"type": "stopped", "attempt": self.attempt, "port": self.port}),
        ]

    def _finish(self, final: Message, now: Now) -> List[Effect]:
        if self.state == FINISHED:
            return [SendToCoordinator({"type": "finished"})]
        if outcome.attempt_of(final) < self.known_attempt:  # of a coordinator that was replaced, and does not know it
            return [Log("the outcome of attempt %d is dropped: it is over" % outcome.attempt_of(final))]
        if self.state in (RUNNING, STOPPING):
            self._pending_outcome = final
            return (
                [Stop(self.identity.stop_grace)]
                if self.state == STOPPING
                else self._stop(self.identity.stop_grace, now)
            )
        stays = self.state == STUCK  # its container could not end, nor its message be read: /status tells the outcome
        self.state, self.outcome, self._pending_outcome = FINISHED, final, None
        effects: List[Effect] = [Finish(final), Save(), SendToCoordinator({"type": "finished"})]
        return effects if stays else [*effects, Exit(outcome.exit_code(final))]
