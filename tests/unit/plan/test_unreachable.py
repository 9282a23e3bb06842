"""An agent that answers no request is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.plan.objects import NOW, SETTINGS, World, agent, condition, job, pod, true_conditions

HOUR = 3600.0


def world_of_pods(**spec: Any) -> World:
    world = World(job(**spec))
    world.settle(NOW)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)))
    return world


def silent(world: World, seconds: float) -> None:
    world.see(agent=None, agent_silent_seconds=seconds)
    world.settle(NOW + seconds)


def test_running_job_with_a_silent_agent_is_reported_once() -> None:
    world = world_of_pods()
    world.see(agent=agent())
    world.settle(NOW)
    world.events.clear()
    silent(world, 59)
    assert condition(world.status, "Running")["reason"] == "WorkersRunning"
    silent(world, 61)
    running = condition(world.status, "Running")
    assert (running["status"], running["reason"]) == ("True", "AgentUnreachable"), "training may well continue"
    assert "29400" in running["message"]
    written = len(world.writes)
    silent(world, 6 * HOUR)
    assert len(world.writes) == written, "nothing is written while it stays silent"
    assert [(event.type, event.reason) for event in world.events] == [("Warning", "AgentUnreachable")]
    world.see(agent=agent(), agent_silent_seconds=0.0)
    world.settle(NOW + 6 * HOUR + 1)
    assert condition(world.status, "Running")["reason"] == "WorkersRunning"


def test_job_with_an_agent_that_never_answers_is_reported_and_not_running() -> None:
    world = world_of_pods()
    silent(world, 61)
    assert true_conditions(world.status) == ["AgentUnreachable"]
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "AgentUnreachable")


def test_restarting_job_with_a_silent_agent_still_restarts() -> None:
    world = world_of_pods()
    world.see(agent=agent())
    world.settle(NOW)
    world.see(agent=agent(phase="Rendezvous", phaseReason="WorkerFailed"))
    world.settle(NOW + 1)
    silent(world, 61)
    assert condition(world.status, "Restarting")["status"] == "True"
    assert world.status["reason"] == "AgentUnreachable"


def test_lost_pod_takes_precedence_over_a_silent_agent() -> None:
    world = world_of_pods()
    world.see(agent=agent())
    world.settle(NOW)
    world.see(pods=world.observed.pods[:2])
    silent(world, 61)
    assert condition(world.status, "Restarting")["reason"] == "PodLost"


@pytest.mark.parametrize(("seconds", "wait"), [(0, 60), (3, 57), (10, 50), (59.5, 0.5), (60, 60), (HOUR, 60)])
def test_job_is_looked_at_when_its_silence_is_due(seconds: float, wait: float) -> None:
    world = world_of_pods()
    world.settings = replace(SETTINGS, status_poll_seconds=60)
    world.see(agent=agent())
    world.settle(NOW)
    silent(world, seconds)
    wanted = world.reconcile(NOW + seconds)
    assert wanted is not None
    assert wanted.requeue_after == wait


PENDING = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]}
WITHOUT_SOME: dict[str, tuple[Any, int, int]] = {
    "a shrunk group": ({"elastic": {"minReplicas": 1}}, 2, 2),
    "a missing spare": ({"spares": 1}, 3, 3),
}


@pytest.mark.parametrize(("spec", "running", "size"), WITHOUT_SOME.values(), ids=WITHOUT_SOME)
@pytest.mark.parametrize("waits", [True, False])
def test_silent_group_that_runs_without_a_pod_is_reported(spec: Any, running: int, size: int, waits: bool) -> None:
    world = World(job(**spec))
    world.settle(NOW)
    group = [pod(o, owner=world.set_uid) for o in range(running)]
    if waits:
        group.append(pod(running, owner=world.set_uid, **PENDING))
    world.see(pods=tuple(group), agent=agent(replicas=size))
    world.settle(NOW)
    assert condition(world.status, "Running")["reason"] == "WorkersRunning"
    silent(world, 61)
    found = condition(world.status, "Running")
    assert (found["status"], found["reason"]) == ("True", "AgentUnreachable")
    assert not found["message"].startswith("all pods")
