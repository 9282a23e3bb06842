"""A job whose attempts break, as the restart policy sees it: the helper of its table tests."""

from __future__ import annotations

from typing import Any

from dtj_agent.group import restart_policy, restart_rules
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.messages import Now
from dtj_agent.group.restart_policy import Fail, Restart, RestartPolicy
from dtj_contract.names import Reason
from dtj_contract.operator_message import RestartBudget
from tests.unit.agent.coordinator_harness import WALL


class Job:
    """A history and its policy; time stands still unless it is moved."""

    def __init__(self, max_restarts: int = 10, window: float = 3600.0, rules: Any = (), **spec: Any) -> None:
        read, problems = restart_rules.read(list(rules))
        assert not problems
        self.policy = RestartPolicy(
            GroupSpec("uid", 2, 1, max_restarts=max_restarts, window=window, rules=read, **spec)
        )
        self.history = History()
        self.time = 1000.0
        self.result: Restart | Fail = Restart()

    def now(self) -> Now:
        return Now(self.time, WALL + self.time)

    def breaks(
        self, *reasons: str, stepped: bool = False, lived: float = 0.0, after: float = 0.0, **evidence: Any
    ) -> Job:
        """Breaks one attempt by all `reasons` (the last for pod 0, if several explain its loss), and charges."""
        self.time += after
        self.policy.attempt_broke()
        self.history.attempt += 1
        for reason in reasons:
            failure = {
                "reason": reason,
                "message": f"it was {reason}",
                "attempt": self.history.attempt,
                "ordinal": 0,
                **evidence,
            }
            self.history.failure(self.policy.apply_rules(failure))
            self.result = self.policy.decide(failure, self.history, self.now(), stepped, lived)
        if self.policy.deferred is not None:
            charged = self.policy.charge_deferred(self.history, self.now())
            wait = self.result.wait if isinstance(self.result, Restart) else 0.0
            self.result = charged._replace(wait=wait) if isinstance(charged, Restart) else charged
        return self

    def times(self, count: int, *reasons: str, **attempt: Any) -> Job:
        for _ in range(count):
            self.breaks(*reasons, **attempt)
        return self

    def budget(self, generation: int, max_restarts: int, window: float = 3600.0, without_progress: int = 20) -> Job:
        """Hands over the budget of a generation of the job."""
        self.policy.take_budget(RestartBudget(generation, max_restarts, window, without_progress), self.history)
        return self

    def checkpoint(self, step: int) -> Job:
        restart_policy.checkpoint_written(self.history, step)
        self.history.checkpoint = {"step": step, "path": "p", "time": 1.0}
        return self

    def step(self, step: int) -> Job:
        restart_policy.step_done(self.history, step)
        return self

    def saved(self, newest: float, age: float = 60.0) -> Job:
        restart_policy.file_saved(self.history, newest, age)
        return self


FREE, COUNTED = "free", "counted"
EVICTED, PREEMPTED, DELETED, TERMINATED = (
    Reason.POD_EVICTED, Reason.PREEMPTED, Reason.POD_DELETED, Reason.AGENT_TERMINATED,
)  # fmt: skip
FAILED, LOST, STUCK, CRASHED, CONNECTION, MISSING, OOM = (
    Reason.WORKER_FAILED, Reason.POD_LOST, Reason.WORKER_STUCK, Reason.AGENT_CRASHED, Reason.CONNECTION_LOST,
    Reason.FILE_NOT_FOUND, Reason.OOM_KILLED,
)  # fmt: skip


def outcome(job: Job) -> tuple[str, float]:
    """Returns what followed the last attempt: a reason or free or counted, and the wait."""
    if isinstance(job.result, Fail):
        return job.result.reason, 0
    return COUNTED if job.result.counted else FREE, job.result.wait
