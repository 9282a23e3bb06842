"""Out of memory in both of its forms: the kernel kills a worker, or the container with its agent.

The pods' statuses are those of a kubelet of 1.28 or later on a node with cgroup v2, where the
kernel kills every process of the container at once (memory.oom.group).
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed, Plan
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    agent,
    condition,
    container,
    ended,
    job,
    outcome,
    pod,
    pods,
    service,
    started,
)

Object = dict[str, Any]
KILLED = NOW + 100
BACK = KILLED + 12
LIMITS = {"containers": [{"name": "trainer", "resources": {"limits": {"memory": "2Gi"}}}], "nodeName": "w1"}
CRASH_MESSAGE = "the agent in pod digits-1 on node w1 crashed and was restarted"


def failure(reason: str, *, attempt: int = 1, ordinal: int = 1, time: float = BACK, **more: Any) -> Object:
    """Returns a failure as an agent reports it."""
    messages = {
        "AgentCrashed": CRASH_MESSAGE, "PodLost": "pod digits-1 on node w1 was lost",
        "OOMKilled": "rank 1 was killed because the container reached its memory limit",
    }  # fmt: skip
    return {
        "attempt": attempt, "rank": ordinal, "ordinal": ordinal, "pod": f"digits-{ordinal}", "node": "w1",
        "exitCode": None, "signal": None, "reason": reason, "message": messages.get(reason, reason), "time": time,
        "logTail": "",
    } | more  # fmt: skip


def killed(at: float = KILLED, reason: str = "OOMKilled") -> Object:
    return {
        "exitCode": 137, "reason": reason, "startedAt": rfc3339(NOW), "finishedAt": rfc3339(at),
        "containerID": "containerd://1f0c",
    }  # fmt: skip


def with_pod_1(*, last: Object | None = None, spec: Object | None = None, **state: Any) -> tuple[Object, ...]:
    """Returns the pods; the container of pod 1 was restarted after `last`, or is in `state`."""
    one = pod(1, phase="Running", podIP="10.0.0.1", containerStatuses=[container(restarts=1, last=last, **state)])
    return (pod(0), {**one, "spec": spec or LIMITS}, pod(2))


def look(stored: Object, seen_pods: tuple[Object, ...], page: Object | None, now: float) -> Plan:
    _, child = started()
    return plan(job(stored), Observed(stateful_set=child, service=service(), pods=seen_pods, agent=page), now, SETTINGS)


def is_running() -> Object:
    stored, _ = started()
    return look(stored["status"], pods(), agent(), NOW + 1).status


def broken(*failures: Object, phase: str = "Rendezvous", reason: str = "AgentCrashed", **more: Any) -> Object:
    return agent(phase=phase, phaseReason=reason, failures=list(failures), **more)


RECOVERY = {"attempt": 2, "kind": "Pod", "reason": "AgentCrashed", "counted": True, "time": BACK, "lastStep": 40}


def test_container_killed_with_its_agent_is_reported_as_out_of_memory() -> None:
    after = look(is_running(), with_pod_1(last=killed()), broken(failure("AgentCrashed")), BACK + 1)
    (found,) = after.status["failures"]
    assert (found["reason"], found["exitCode"], found["signal"]) == ("OOMKilled", 137, "SIGKILL")
    assert "pod digits-1" in found["message"]
    assert "2Gi" in found["message"]
    assert "resources.limits.memory" in found["message"]
    restarting = condition(after.status, "Restarting")
    assert (restarting["reason"], restarting["message"]) == ("OOMKilled", found["message"])
    assert [(event.reason, found["message"] in event.message) for event in after.events] == [("OOMKilled", True)]


def test_worker_killed_for_memory_keeps_the_agents_diagnosis() -> None:
    """Without memory.oom.group only the worker dies, and its agent reads the container's counter."""
    page = broken(failure("OOMKilled"), phase="Stopping", reason="OOMKilled")
    after = look(is_running(), pods(), page, BACK)
    restarting = condition(after.status, "Restarting")
    assert (restarting["reason"], restarting["message"]) == ("OOMKilled", failure("OOMKilled")["message"])


def test_recovery_after_the_kill_carries_the_reason_once_and_for_all() -> None:
    stored = look(is_running(), with_pod_1(last=killed()), broken(failure("AgentCrashed")), BACK + 1).status
    again = agent(attempt=2, failures=[failure("AgentCrashed")], recoveries=[RECOVERY])
    after = look(stored, with_pod_1(last=killed()), again, BACK + 2)
    assert [recovery["reason"] for recovery in after.status["recoveries"]] == ["OOMKilled"]
    assert not [event for event in after.events if event.reason in ("OOMKilled", "AgentCrashed")], "reported before"
    # The pod is replaced, so that no object shows the reason; the agents report theirs for ever.
    later = look(after.status, pods(), again | {"recoveries": [RECOVERY | {"resumedStep": 40}]}, BACK + 60)
    assert [recovery["reason"] for recovery in later.status["recoveries"]] == ["OOMKilled"]
    assert [recovery["resumedStep"] for recovery in later.status["recoveries"]] == [40]
    assert [each["reason"] for each in later.status["failures"]] == ["OOMKilled"]
    assert look(later.status, pods(), again, BACK + 61).events == ()


def test_kill_that_happened_while_the_operator_was_down_is_found() -> None:
    page = agent(attempt=2, failures=[failure("AgentCrashed")], recoveries=[RECOVERY])
    after = look(is_running(), with_pod_1(last=killed()), page, BACK + 5000)
    assert [each["reason"] for each in after.status["failures"]] == ["OOMKilled"]
    assert [each["reason"] for each in after.status["recoveries"]] == ["OOMKilled"]


def test_pod_that_still_waits_for_its_container_is_out_of_memory_too() -> None:
    """In the kubelet's back-off the peers know only that the pod was lost."""
    page = broken(failure("PodLost", time=KILLED + 1), reason="PodLost")
    for state in ({"terminated": killed()}, {"waiting": {"reason": "CrashLoopBackOff"}}):
        last = None if "terminated" in state else killed()
        after = look(is_running(), with_pod_1(last=last, **state), page, KILLED + 3)
        assert [each["reason"] for each in after.status["failures"]] == ["OOMKilled"]
        assert condition(after.status, "Restarting")["reason"] == "OOMKilled"
        back = look(after.status, with_pod_1(last=killed()), broken(failure("AgentCrashed")), BACK + 1)
        assert [each["reason"] for each in back.status["failures"]] == ["OOMKilled"]


NOT_THE_CAUSE: dict[str, tuple[Object, Object]] = {
    "another container was killed": (killed(reason="Error"), failure("AgentCrashed")),
    "the failure is older than the kill": (killed(), failure("AgentCrashed", time=KILLED - 60)),
    "another pod failed": (killed(), failure("AgentCrashed", ordinal=2)),
    "the connection was lost later": (killed(), failure("ConnectionLost")),
    "the pod was lost later, and runs again": (killed(), failure("PodLost", time=BACK + 600)),
    "the script failed": (killed(), failure("WorkerFailed")),
}


@pytest.mark.parametrize("case", NOT_THE_CAUSE)
def test_failure_of_another_cause_keeps_its_reason(case: str) -> None:
    last, reported = NOT_THE_CAUSE[case]
    page = agent(attempt=2, failures=[reported], recoveries=[RECOVERY | {"reason": reported["reason"]}])
    after = look(is_running(), with_pod_1(last=last), page, BACK + 700)
    assert [each["reason"] for each in after.status["failures"]] == [reported["reason"]]
    assert [each["reason"] for each in after.status["recoveries"]] == [reported["reason"]]


def test_later_crash_of_the_pod_keeps_its_own_reason() -> None:
    """The kubelet remembers only the last end of a container."""
    first = agent(attempt=2, failures=[failure("AgentCrashed")], recoveries=[RECOVERY])
    stored = look(is_running(), with_pod_1(last=killed()), first, BACK + 5).status
    second = failure("AgentCrashed", attempt=2, time=BACK + 300)
    page = broken(failure("AgentCrashed"), second, attempt=2, recoveries=[RECOVERY])
    after = look(stored, with_pod_1(last=killed(BACK + 290, reason="Error")), page, BACK + 301)
    assert [each["reason"] for each in after.status["failures"]] == ["OOMKilled", "AgentCrashed"]
    assert condition(after.status, "Restarting")["reason"] == "AgentCrashed"


def test_container_without_a_limit_points_to_the_nodes_memory() -> None:
    seen = with_pod_1(last=killed(), spec={"nodeName": "w1", "containers": [{"name": "trainer"}]})
    (found,) = look(is_running(), seen, broken(failure("AgentCrashed")), BACK + 1).status["failures"]
    assert "node w1" in found["message"]
    assert "resources.requests.memory" in found["message"]


def test_budget_that_memory_has_spent_is_named_in_the_outcome() -> None:
    stored = look(is_running(), with_pod_1(last=killed()), broken(failure("AgentCrashed")), BACK + 1).status
    text = f"the budget of 1 restarts within 3600 s is spent; the last failure: {CRASH_MESSAGE}"
    done = container(last=None, terminated=ended(outcome("Failed", message=text, failure=failure("AgentCrashed")), 1))
    seen = (pod(0, phase="Running", containerStatuses=[done]), *with_pod_1(last=killed())[1:])
    after = look(stored, seen, None, BACK + 2)
    failed = condition(after.status, "Failed")
    assert failed["reason"] == "RestartBudgetSpent"
    assert "resources.limits.memory" in failed["message"]
    assert [each["reason"] for each in after.status["failures"]] == ["OOMKilled"]


def test_start_that_memory_prevents_is_reported_as_out_of_memory() -> None:
    stored, _ = started()
    seen = with_pod_1(last=killed(), waiting={"reason": "CrashLoopBackOff"})
    after = look(stored["status"], seen, None, NOW + 9)
    running = condition(after.status, "Running")
    assert running["reason"] == "OOMKilled"
    assert "2Gi" in running["message"]
    assert [event.reason for event in after.events] == ["OOMKilled"]


@pytest.mark.parametrize("first", ["AgentCrashed", "OOMKilled"])
def test_kill_that_the_agents_know_of_is_shown_once_with_the_limit(first: str) -> None:
    text = "the container of pod digits-1 on node w1 ran out of memory, and the kernel killed it with its agent"
    stored = look(is_running(), with_pod_1(last=killed()), broken(failure(first)), BACK + 1).status
    known = broken(failure("OOMKilled", message=text), reason="OOMKilled")
    after = look(stored, with_pod_1(last=killed()), known, BACK + 2)
    (found,) = after.status["failures"]
    assert (found["reason"], found["exitCode"]) == ("OOMKilled", 137)
    assert "2Gi" in found["message"]
    assert not after.events, "reported before"
