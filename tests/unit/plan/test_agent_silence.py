"""Condition AgentUnreachable: when it is set, what it shows, and what removes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, World, agent, condition, job, pod, true_conditions

Step = Callable[[World], None]


def world_of_pods(**spec: Any) -> World:
    """Returns a job whose pods run and whose agents have reported."""
    world = World(job(**spec))
    world.settle(NOW)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent())
    world.settle(NOW)
    return world


def silent(seconds: float, cause: str = "unreachable") -> Step:
    def step(world: World) -> None:
        world.see(agent=None, agent_silent_seconds=seconds, agent_silence=cause)
        world.settle(NOW + seconds)

    return step


def heard(world: World) -> None:
    world.see(agent=agent(), agent_silent_seconds=0.0, agent_silence="")
    world.settle(NOW + 1000)


def follower_heard(world: World) -> None:
    other = agent() | {"ordinal": 1, "leader": {"ordinal": 0, "pod": "digits-0", "epoch": 1}}
    world.see(agent=other, agent_silent_seconds=0.0, agent_silence="")
    world.settle(NOW + 1000)


def operator_restarted(world: World) -> None:
    world.see(agent=None, agent_silent_seconds=0.0, agent_silence="", agent_asked=False)
    world.settle(NOW + 1001)


def suspended(world: World) -> None:
    world.job["spec"]["suspend"] = True
    world.job["metadata"]["generation"] = 2
    world.settle(NOW + 1002)


def pods_gone(world: World) -> None:
    world.see(pods=(), agent=None, agent_silent_seconds=0.0, agent_silence="")
    world.settle(NOW + 1003)


HISTORIES: dict[str, tuple[list[Step], str]] = {
    "an answer": ([], ""),
    "a short silence": ([silent(59)], ""),
    "a minute of silence": ([silent(59), silent(60)], "AgentUnreachable"),
    "a longer silence": ([silent(60), silent(6000)], "AgentUnreachable"),
    "an answer after a silence": ([silent(60), heard], ""),
    "an answer of an agent that does not lead": ([silent(60), follower_heard], ""),
    "another key": ([silent(60, "refused")], "AgentRefused"),
    "another program": ([silent(60, "invalid")], "AgentInvalid"),
    "another cause": ([silent(60, "refused"), silent(90)], "AgentUnreachable"),
    "a restart of the operator": ([silent(60), operator_restarted], "AgentUnreachable"),
    "a restart and a short silence": ([silent(60), operator_restarted, silent(5)], "AgentUnreachable"),
    "a suspension": ([silent(60), suspended], ""),
    "no pod that runs": ([silent(60), pods_gone], ""),
    "an old silence without pods": ([pods_gone, silent(90)], ""),
}


@pytest.mark.parametrize(("steps", "reason"), HISTORIES.values(), ids=HISTORIES)
def test_condition_follows_the_silence(steps: list[Step], reason: str) -> None:
    world = world_of_pods()
    for step in steps:
        step(world)
    found = condition(world.status, "AgentUnreachable")
    assert found.get("reason", "") == reason
    assert ("AgentUnreachable" in true_conditions(world.status)) == bool(reason)


def test_message_names_the_time_since_when_and_the_cure() -> None:
    world = world_of_pods()
    silent(75)(world)
    found = condition(world.status, "AgentUnreachable")
    assert found["message"].startswith(f"no agent has answered since {rfc3339(NOW)}: ")
    assert "NetworkPolicy" in found["message"]
    assert found["lastTransitionTime"] == rfc3339(NOW + 75)


def test_lasting_silence_is_written_once() -> None:
    world = world_of_pods()
    silent(75)(world)
    before, written = condition(world.status, "AgentUnreachable"), len(world.writes)
    for seconds in (80, 300, 4000):
        silent(seconds)(world)
    operator_restarted(world)
    assert condition(world.status, "AgentUnreachable") == before
    assert len(world.writes) == written


def test_finished_job_is_not_unreachable() -> None:
    world = world_of_pods(activeDeadlineSeconds=500)
    silent(75)(world)
    silent(600)(world)
    assert true_conditions(world.status) == ["Failed"]
    assert condition(world.status, "AgentUnreachable") == {}


def test_phase_stays_that_of_the_group() -> None:
    world = world_of_pods()
    silent(75)(world)
    assert world.status["phase"] == "Running"
    operator_restarted(world)
    assert condition(world.status, "Running")["reason"] == "AgentUnreachable", "nothing new is known"


CRASHED = {
    "containerStatuses": [
        {
            "name": "trainer", "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
        }
    ]
}  # fmt: skip


@pytest.mark.parametrize(("asked", "phase"), [(False, "Pending"), (True, "Failed")])
def test_unstartable_pod_fails_no_job_whose_agents_were_not_asked_yet(asked: bool, phase: str) -> None:
    world = World(job())
    world.settle(NOW)
    pods = [pod(o, owner=world.set_uid) for o in range(2)] + [pod(2, owner=world.set_uid, **CRASHED)]
    world.see(pods=tuple(pods), agent_asked=asked)
    world.settle(NOW + 1)
    assert world.status["phase"] == phase
