"""An agent that leaves every question unanswered is reported, and asked later and later."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.build import NOW, SETTINGS, World, agent, condition, job, pod, true_conditions

HOUR = 3600.0


def world_of_pods(**spec: Any) -> World:
    world = World(job(**spec))
    world.settle(NOW)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)))
    return world


def silent(world: World, seconds: float) -> None:
    world.see(agent=None, agent_silent_seconds=seconds)
    world.settle(NOW + seconds)


def test_a_running_job_whose_agent_is_silent_for_a_minute_is_reported_once() -> None:
    world = world_of_pods()
    world.see(agent=agent())
    world.settle(NOW)
    world.events.clear()
    silent(world, 59)
    assert condition(world.status, "Running")["reason"] == "WorkersRunning"
    silent(world, 61)
    said = condition(world.status, "Running")
    assert (said["status"], said["reason"]) == ("True", "AgentUnreachable"), "a training may well go on"
    assert "29400" in said["message"]
    written = len(world.writes)
    silent(world, 6 * HOUR)
    assert len(world.writes) == written, "nothing new is written while it stays silent"
    assert [(event.type, event.reason) for event in world.events] == [("Warning", "AgentUnreachable")]
    world.see(agent=agent(), agent_silent_seconds=0.0)
    world.settle(NOW + 6 * HOUR + 1)
    assert condition(world.status, "Running")["reason"] == "WorkersRunning"


def test_a_job_whose_agent_never_answers_is_reported_and_does_not_run() -> None:
    world = world_of_pods()
    silent(world, 61)
    assert true_conditions(world.status) == []
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "AgentUnreachable")


def test_a_restarting_job_whose_agent_is_silent_still_restarts() -> None:
    world = world_of_pods()
    world.see(agent=agent())
    world.settle(NOW)
    world.see(agent=agent(phase="Rendezvous", phaseReason="WorkerFailed"))
    world.settle(NOW + 1)
    silent(world, 61)
    assert condition(world.status, "Restarting")["status"] == "True"
    assert world.status["reason"] == "AgentUnreachable"


def test_a_lost_pod_goes_before_a_silent_agent() -> None:
    world = world_of_pods()
    world.see(agent=agent())
    world.settle(NOW)
    world.see(pods=world.observed.pods[:2])
    silent(world, 61)
    assert condition(world.status, "Restarting")["reason"] == "PodLost"


@pytest.mark.parametrize(("seconds", "wait"), [(0, 2), (3, 2), (10, 5), (60, 30), (600, 60), (HOUR, 60)])
def test_next_look_at_a_silent_agent_is_later_and_later(seconds: float, wait: float) -> None:
    assert SETTINGS.poll_seconds(seconds) == wait
    world = world_of_pods()
    silent(world, seconds)
    wanted = world.reconcile(NOW + seconds)
    assert wanted is not None
    assert wanted.requeue_after == wait
