"""One agent's part in the group: runs the workers of one attempt at a time. Pure.

idle     --start--> running
running  --failure, stop, coordinator lost, SIGTERM--> stopping --all workers gone--> idle
running  --all workers exited with 0, all their children gone--> done --start--> running
stopping --SIGKILL does not end them--> stuck --all workers gone after all--> idle
any      --finish--> finished
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from dtj_agent.group import diagnosis, outcome
from dtj_agent.group.effects import Log
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import DONE, FINISHED, IDLE, PROTOCOL_VERSION, RUNNING, STOPPING, STUCK, Message, Now
from dtj_agent.group.success_policy import RANK_ZERO_DONE, is_rank_zero_done
from dtj_agent.group.worker_exit import WorkerExit
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
    members: Tuple[Tuple[str, int], ...] = ()
    """Address and port of every member by node rank, where the group lists them."""


class Stop(NamedTuple):
    """SIGTERM now, SIGKILL after `grace` seconds (of several, the earliest); then `workers_gone`."""

    grace: float


class Save(NamedTuple):
    """Write `Member.saved()` to the state file."""


class TakeStacks(NamedTuple):
    """Take the stacks of the running workers, and send them with a heartbeat."""


class Finish(NamedTuple):
    """Write the outcome for the restarted agent, the kubelet and the operator."""

    outcome: Message


class Forget(NamedTuple):
    """Remove the outcome: the job has continued after it."""


class Exit(NamedTuple):
    """End the agent with this exit code."""

    code: int


Effect = Union[SendToCoordinator, Spawn, Stop, TakeStacks, Save, Finish, Forget, Exit, Log]


class Identity(NamedTuple):
    """The identity of an agent. `incarnation` is new for each process."""

    uid: str
    ordinal: int
    incarnation: str
    pod: str
    node: str
    address: str
    grace: float
    """Seconds from SIGTERM to SIGKILL of the workers when the pod terminates."""
    stop_grace: float = names.STOP_GRACE_SECONDS
    """Seconds from SIGTERM to SIGKILL of the workers when the group has failed."""
    success_policy: str = names.SUCCESS_ALL


class Member:
    """Follows the coordinator's messages.

    `saved`: the pod's state file; `final`: its outcome file, if there is one.
    """

    def __init__(self, identity: Identity, saved: Dict[str, Any], final: Optional[Message]) -> None:
        self.identity = identity
        self.history = History.from_json(saved.get("history") or {})
        self.attempt = int(saved.get("attempt") or 0)
        """The greatest attempt that this pod was ever started for."""
        self.outcome = final
        self.state = FINISHED if final else (DONE if saved.get("state") == DONE else IDLE)
        self.crashed = self.state == IDLE and saved.get("state") == RUNNING
        """The previous agent of this pod died while workers ran."""
        self.terminated = self.state == IDLE and saved.get("terminated") is True
        """SIGTERM ended the previous agent of this pod while workers ran, and the pod stayed."""
        self.rebooted = (self.crashed or self.terminated) and saved.get("rebooted") is True
        """The node has restarted since then."""
        self.promised = int(saved.get("promised") or 0)
        """No start below this number is followed: a coordinator has been promised that."""
        self.remembers = bool(saved.get("remembers", self.attempt > 0)) or final is not None
        """Whether this pod has been part of the group (witnesses.py)."""
        self.held: Optional[Message] = saved.get("held")
        """An outcome that ends the job as soon as a majority holds it (ending.py)."""
        self._rank_zero_done = int(number(saved.get(RANK_ZERO_DONE)))
        """The last attempt in which rank 0 ran here and succeeded (success_policy.py)."""
        self._led_by = int(saved.get("ledBy") or 0)
        """The ordinal that leads the attempt."""
        self.linked = False
        self.leaving = False
        self._left_work = False
        self.port = 0
        """MASTER_PORT if this pod gets node rank 0; the shell keeps it reserved."""
        self._working: Dict[int, bool] = {}
        """The global ranks whose workers have not ended, as keys in order."""
        self._pending_outcome: Optional[Message] = None
        """The outcome that waits for the workers' end."""
        self._all_succeeded = False
        """All workers exited with 0; the processes that they left behind are being removed."""
        self._broken_at: Optional[float] = None
        """When the attempt began to stop, or its coordinator was lost."""
        self._silence = 0.0
        self._step: Optional[int] = saved.get("step")

    # --- the link to the coordinator ------------------------------------------------------------------------------

    def connected(self, now: Now) -> List[Effect]:
        self.linked = True
        return [SendToCoordinator(self.hello(now))]

    def disconnected(self, silence: float, now: Now) -> List[Effect]:
        """Stops the workers at once: the group can't continue without a coordinator."""
        self.linked, self._silence = False, silence
        if self._broken_at is None:
            self._broken_at = now.mono
        if self.state == STOPPING and not self._all_succeeded and not self.leaving:
            return [Stop(self.identity.stop_grace)]
        if self.state != RUNNING:
            return []
        text = "lost the coordinator (silent for %.2f s): stopping the workers" % silence
        return [Log(text), *self._stop(self.identity.stop_grace, now)]

    @property
    def known_attempt(self) -> int:
        """The greatest attempt that this agent has heard of."""
        return max(self.attempt, self.history.attempt, outcome.ended_attempt(self.outcome or {}))

    def hello(self, now: Now) -> Message:
        me = self.identity
        interrupted = None
        if self.attempt:  # a new coordinator needs to know
            ago = 0.0 if self._broken_at is None else now.mono - self._broken_at
            interrupted = {"attempt": self.attempt, "silence": self._silence, "ago": ago, "step": self._step}
            interrupted["leader"] = self._led_by
        return {
            "type": "hello", "version": PROTOCOL_VERSION, "uid": me.uid, "ordinal": me.ordinal,
            "incarnation": me.incarnation, "pod": me.pod, "node": me.node, "address": me.address, "port": self.port,
            "state": self.state, "attempt": self.attempt, "history": self.history.to_json(), "outcome": self.outcome,
            "crashed": self.crashed, "terminated": self.terminated, "rebooted": self.rebooted,
            "interrupted": interrupted, "promised": self.promised, "remembers": self.remembers, "held": self.held,
            RANK_ZERO_DONE: self._rank_zero_done,
        }  # fmt: skip

    def received(self, message: Message, now: Now) -> List[Effect]:
        kind = message["type"]
        if kind == "start":
            return self._start(message)
        if kind == "stop":
            return self._stop_asked(message, now)
        if kind == "hold":
            return self._hold(message["outcome"])
        if kind == "finish":
            return self._finish(message["outcome"], now)
        if kind == "history":
            return self.learn(message["history"])
        if kind == "promise":
            return self._promise(message["attempt"])
        if kind == "remember":
            self.promised, self.remembers = max(self.promised, message["attempt"]), True
            return [Save()]
        if kind == "beat" and isinstance(message.get("live"), dict):
            self.history.apply_live(message["live"])
        if kind == "beat" and message.get("stacks") == self.attempt and self.state == RUNNING:
            return [TakeStacks()]
        return []

    # --- the workers ----------------------------------------------------------------------------------------------

    def exited(self, attempt: int, exits: List[WorkerExit], now: Now) -> List[Effect]:
        """Handles the end of workers of `attempt`, all that the shell found at one time."""
        if attempt != self.attempt or self.state not in (RUNNING, STOPPING, STUCK):
            return []
        for worker in exits:
            self._working.pop(worker.rank, None)
        failures = [worker for worker in exits if worker.exit_code != 0 and not worker.requested]
        effects: List[Effect] = []
        if self.identity.success_policy == names.SUCCESS_RANK_0 and is_rank_zero_done(exits):
            self._rank_zero_done = attempt
            effects += [Save(), SendToCoordinator({"type": "beat", "attempt": attempt, RANK_ZERO_DONE: attempt})]
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
        """Reports that SIGKILL does not end the workers.

        The shell repeats the call, so that a new coordinator learns it too.
        """
        if self.state not in (STOPPING, STUCK):
            return []
        self.state, self._all_succeeded = STUCK, False
        report: List[Effect] = [Log(what), SendToCoordinator({"type": "stuck", "attempt": self.attempt, "what": what})]
        if self._pending_outcome is not None:
            return [*report, *self._finish(self._pending_outcome, now)]
        return [*report, Exit(names.EXIT_TERMINATED)] if self.leaving else report

    def workers_gone(self, now: Now) -> List[Effect]:
        """Handles that no process of the attempt is left in this pod."""
        if self.state not in (STOPPING, STUCK):
            return []
        self.state = DONE if self._all_succeeded else IDLE
        answer = "done" if self._all_succeeded else "stopped"
        report = SendToCoordinator({"type": answer, "attempt": self.attempt, "port": self.port})
        effects: List[Effect] = [report, Save()]
        if self._pending_outcome is not None:
            return effects + self._finish(self._pending_outcome, now)
        return effects + ([Exit(names.EXIT_TERMINATED)] if self.leaving else [])

    def reported(self, attempt: int, step: Optional[int]) -> None:
        """Remembers that a worker of this pod has done `step`."""
        if attempt == self.attempt and step is not None:
            self._step = step

    # --- the pod --------------------------------------------------------------------------------------------------

    def terminate(self, now: Now) -> List[Effect]:
        """Handles a SIGTERM: the pod terminates. A second SIGTERM kills the workers at once."""
        if self.state == FINISHED:
            return [Exit(outcome.exit_code(self.outcome or {}))]
        again, self.leaving = self.leaving, True
        effects: List[Effect] = [] if again else [SendToCoordinator({"type": "leaving", "grace": self.identity.grace})]
        if self.state == RUNNING:
            self._left_work = True
            return effects + self._stop(self.identity.grace, now)
        if self.state == STOPPING:
            # The pod's grace is all that is left of a longer one.
            return [*effects, Stop(0.0 if again else self.identity.grace)]
        return [*effects, Exit(names.EXIT_TERMINATED)]

    def saved(self) -> Dict[str, Any]:
        """Returns the state that the next agent in this pod must know."""
        # `stopping` is saved as running: an agent that dies then has left its workers to SIGKILL.
        state = RUNNING if self.state in (STOPPING, STUCK) and not self.leaving else self.state
        if self.leaving and state != DONE:
            state = IDLE  # an announced end is no crash
        return {
            "uid": self.identity.uid,
            "attempt": self.attempt,
            "state": state,
            "step": self._step,
            "terminated": self._left_work,
            "promised": self.promised,
            "remembers": self.remembers,
            "held": self.held,
            "ledBy": self._led_by,
            RANK_ZERO_DONE: self._rank_zero_done,
            "history": self.history.to_json(),
        }

    # --- transitions ----------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> List[Effect]:
        attempt = message["attempt"]
        if attempt <= self.attempt or attempt < self.promised or self.state not in (IDLE, DONE) or self.leaving:
            why = "attempt %d is not started: this pod is %s, at attempt %d" % (attempt, self.state, self.attempt)
            if self.leaving:
                return [Log(why)]  # the connection's end is the answer
            # This should be impossible. If it happens, the others must not wait for this pod's ranks.
            code = diagnosis.EXEC_NO_RESOURCES
            evidence = {"rank": message["nodeRank"], "exitCode": code, "logTail": why, "oom": False}
            return [Log(why), SendToCoordinator({"type": "failed", "attempt": attempt, "failures": [evidence]})]
        self.attempt, self.state, self.crashed = attempt, RUNNING, False
        self.rebooted = False
        self.terminated, self.remembers, self.held = False, True, None
        self._led_by = int(number(message.get("leader")))
        self._broken_at, self._all_succeeded, self._step = None, False, None
        self.history = History.from_json(message["history"])
        nodes = message["nodeRank"], message["nodes"]
        members = tuple((str(host), int(port)) for host, port in message.get("members") or ())
        return [Save(), Spawn(attempt, *nodes, message["masterAddr"], message["masterPort"], members)]

    def _promise(self, attempt: int) -> List[Effect]:
        """Promises to follow no start below `attempt`, unless that number or a greater one is known here."""
        known = max(self.known_attempt, self.promised)
        granted = attempt > known
        answer = SendToCoordinator({"type": "promised", "attempt": attempt, "granted": granted, "known": known})
        if not granted:
            return [answer]
        self.promised = attempt
        return [Save(), answer]

    def spawned(self, ranks: List[int]) -> None:
        self._working = dict.fromkeys(ranks, True)

    @property
    def ranks(self) -> List[int]:
        """The global ranks whose workers have not ended yet."""
        return list(self._working)

    def _stop_asked(self, message: Message, now: Now) -> List[Effect]:
        if message["attempt"] != self.attempt:
            return []
        if self.state == RUNNING:
            return self._stop(float(message["grace"]), now)
        if self.state == STOPPING:
            if self._all_succeeded:
                self._all_succeeded = False  # the group repeats the attempt
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

    def learn(self, data: Dict[str, Any]) -> List[Effect]:
        """Takes a newer history; an outcome of an earlier attempt is none."""
        theirs = History.from_json(data)
        if not theirs.newer_than(self.history):
            return []
        self.history = theirs
        if outcome.ended_attempt(self.held or {}) < theirs.attempt:
            self.held = None
        if self.outcome is None or outcome.ended_attempt(self.outcome) >= theirs.attempt:
            return [Save()]
        over = outcome.ended_attempt(self.outcome), theirs.attempt
        text = "dropped the outcome of attempt %d: attempt %d has started" % over
        self.state, self.outcome = IDLE, None
        stopped = SendToCoordinator({"type": "stopped", "attempt": self.attempt, "port": self.port})
        return [Log(text), Forget(), Save(), stopped]

    def _hold(self, final: Message) -> List[Effect]:
        """Stores an outcome that does not end this pod yet."""
        known = self._known_end(final)
        if not known:
            self.held = final
        return known or [Save(), SendToCoordinator({"type": "holds"})]

    def _known_end(self, final: Message) -> List[Effect]:
        """Returns the answer to an outcome that is known here, or that a replaced coordinator sends; else none."""
        if self.state == FINISHED:
            return [SendToCoordinator({"type": "finished"})]
        if outcome.ended_attempt(final) >= self.known_attempt:
            return []
        return [Log("dropped the outcome of attempt %d: a later attempt has started" % outcome.ended_attempt(final))]

    def _finish(self, final: Message, now: Now) -> List[Effect]:
        known = self._known_end(final)
        if known:
            return known
        if self.state in (RUNNING, STOPPING):
            self._pending_outcome = final
            grace = self.identity.stop_grace
            return [Stop(grace)] if self.state == STOPPING else self._stop(grace, now)
        # The container of stuck workers can't end, and its termination message can't be read:
        # /status shows the outcome.
        stays = self.state == STUCK
        self.state, self.outcome, self._pending_outcome, self.held = FINISHED, final, None, None
        effects: List[Effect] = [Finish(final), Save(), SendToCoordinator({"type": "finished"})]
        return effects if stays else [*effects, Exit(outcome.exit_code(final))]
