"""A container that the kernel kills with its agent is OOMKilled to the rules, as soon as the operator reports it."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group import restart_rules
from dtj_contract import names
from dtj_contract.operator_message import LostPod, OperatorMessage, decode, encode
from tests.unit.agent.coordinator_harness import CoordinatorHarness

KILL = LostPod("j-1", "10.0.0.1", "OOMKilled", False, 1_790_000_100.0)


def group(action: str = "", **spec: Any) -> CoordinatorHarness:
    rules = restart_rules.read([{"reasons": ["OOMKilled"], "action": action}])[0] if action else ()
    return CoordinatorHarness(2, rules=rules, **spec).running()


def hand(group: CoordinatorHarness, kill: LostPod = KILL) -> None:
    group.do(group.coordinator.handed_over(OperatorMessage(None, (kill,)), group.now()))


def kill(group: CoordinatorHarness, order: str, generation: int = 0, handed: LostPod = KILL) -> None:
    """Kills the container of member 1; `order`: when the operator reports that."""
    attempt = group.coordinator.history.attempt
    group.leave(1, generation=generation)
    if order == "before the others stop":
        hand(group, handed)
    group.stopped(0, attempt=attempt)
    if order == "before the agent is back":
        hand(group, handed)
    group.join(1, generation + 1, incarnation=f"new{generation}", crashed=True, interrupted={"attempt": attempt})
    if order == "after the agent is back":
        hand(group, handed)


ORDERS = ("before the others stop", "before the agent is back", "after the agent is back")


@pytest.mark.parametrize("order", ORDERS)
def test_rule_about_memory_acts_on_a_killed_container(order: str) -> None:
    job = group("Fail")
    kill(job, order)
    final = job.coordinator.outcome
    assert final is not None
    assert (final["reason"], final["failure"]["reason"]) == ("RestartRule", "OOMKilled")
    assert "the container of pod j-1 on node w1 ran out of memory" in final["message"]
    assert [failure["reason"] for failure in job.coordinator.history.failures] == ["OOMKilled"]


@pytest.mark.parametrize("order", ORDERS)
def test_killed_container_without_a_rule_costs_one_restart(order: str) -> None:
    job = group()
    kill(job, order)
    assert job.coordinator.history.attempt == 2, "no wait"
    assert job.coordinator.history.restarts["counted"] == 1
    expected = "AgentCrashed" if order == "after the agent is back" else "OOMKilled"
    assert [failure["reason"] for failure in job.coordinator.history.failures] == [expected]


@pytest.mark.parametrize("order", ORDERS)
def test_free_restart_after_a_killed_container_costs_nothing(order: str) -> None:
    job = group("RestartFree", max_restarts=0)
    kill(job, order)
    assert job.coordinator.outcome is None
    assert job.coordinator.history.attempt == 2, "as soon as the cause is known"
    assert job.coordinator.history.restarts["counted"] == 0


@pytest.mark.parametrize("order", ORDERS)
def test_killed_container_moves_to_another_node_by_rule(order: str) -> None:
    job = group("RestartElsewhere")
    kill(job, order)
    assert job.coordinator.history.attempt == 1
    assert job.coordinator.phase_message(job.now()) == "waiting for j-1 to be replaced on another node"
    assert job.coordinator.history.restarts["counted"] == 1


def test_crash_that_nobody_explains_counts_after_a_bounded_wait() -> None:
    job = group("Fail")
    kill(job, "never")
    job.wait(names.CRASH_CAUSE_SECONDS - 1)
    assert (job.coordinator.history.attempt, job.coordinator.history.restarts["counted"]) == (1, 0)
    job.wait(1)
    assert (job.coordinator.history.attempt, job.coordinator.history.restarts["counted"]) == (2, 1)
    hand(job)
    assert job.coordinator.outcome is None, "too late: the next attempt runs"


def test_kill_explains_no_second_crash() -> None:
    job = group("RestartFree", max_restarts=5)
    kill(job, "after the agent is back")
    hand(job)  # the pod's status shows it on
    kill(job, "after the agent is back", generation=1)
    assert job.coordinator.history.failures[-1]["reason"] == "AgentCrashed"
    hand(job, KILL._replace(time=KILL.time + 60))
    assert job.coordinator.history.failures[-1]["reason"] == "OOMKilled"
    assert job.coordinator.history.restarts["counted"] == 0


def test_kill_of_another_container_explains_nothing() -> None:
    job = group("Fail")
    kill(job, "after the agent is back", handed=KILL._replace(address="10.9.9.9"))
    assert job.coordinator.outcome is None
    assert job.coordinator.history.failures[-1]["reason"] == "AgentCrashed"


def test_kill_survives_the_header() -> None:
    message = OperatorMessage(None, (KILL,))
    assert decode(encode(message)) == message
