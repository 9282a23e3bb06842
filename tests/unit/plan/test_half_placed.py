"""A job that holds nodes for some of its pods only: when it gives them back, and when it tries again."""

from __future__ import annotations

from typing import Any

from dtj_core.plan import half_placed
from dtj_core.plan.times import rfc3339, unix
from tests.unit.plan.objects import NOW, World, agent, condition, job, pod, true_conditions

Object = dict[str, Any]
FULL = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}


def waiting(world: World, ordinal: int, since: float) -> Object:
    made = pod(
        ordinal, owner=world.set_uid, phase="Pending", conditions=[FULL | {"lastTransitionTime": rfc3339(since)}]
    )
    return made | {"spec": {}}


def half(**spec: Any) -> World:
    """Returns a job of 3 pods, of which one holds a node and two find none since NOW."""
    world = World(job(**({"halfPlacedSeconds": 60} | spec)))
    world.settle(NOW)
    placed = pod(0, owner=world.set_uid, phase="Pending")
    world.see(pods=(placed, waiting(world, 1, NOW), waiting(world, 2, NOW)))
    world.settle(NOW + 1)
    world.writes.clear()
    world.events.clear()
    return world


def test_state_is_named_with_the_nodes_that_the_job_holds() -> None:
    world = half()
    assert world.status["reason"] == "Unschedulable"
    assert "1 of 3 pods hold a node meanwhile" in condition(world.status, "Running")["message"]
    assert "spec.halfPlacedSeconds would" not in condition(world.status, "Running")["message"]
    world = half(halfPlacedSeconds=None)
    assert "spec.halfPlacedSeconds would give them back" in condition(world.status, "Running")["message"]


def test_nodes_are_given_back_between_once_and_twice_the_limit() -> None:
    world = half()
    world.settle(NOW + 59)
    assert "delete StatefulSet" not in world.writes
    wanted = world.reconcile(NOW + 59)
    assert wanted is not None
    assert 1 <= (wanted.requeue_after or 0) <= 61, "no event shows that the time is over"
    world.reconcile(NOW + 121)
    assert world.writes == ["status", "event HalfPlaced"], "announced first"
    assert world.status["reason"] == "HalfPlaced"
    world.settle(NOW + 121)
    assert "delete StatefulSet" in world.writes


def test_job_pauses_then_tries_again_and_its_clock_runs_on() -> None:
    world = half()
    started = world.status["startTime"]
    world.settle(NOW + 121)
    world.see(pods=())
    world.settle(NOW + 122)
    assert world.runs == 1, "no pod during the pause"
    again = unix(world.status["halfPlaced"]["retryTime"])
    assert again is not None
    assert 30 <= again - (NOW + 121) <= 90
    wanted = world.reconcile(NOW + 123)
    assert wanted is not None
    assert 0 < (wanted.requeue_after or 0) <= again - NOW - 123
    assert world.status["reason"] == "HalfPlaced"
    world.settle(again + 1)
    assert world.runs == 2
    assert world.status["startTime"] == started, "startupDeadlineSeconds bounds all tries together"
    assert "activeSeconds" not in world.status


def test_clock_runs_on_while_a_quota_refuses_the_next_try() -> None:
    world = half()
    started = world.status["startTime"]
    world.settle(NOW + 121)
    world.see(pods=(), refusal="exceeded quota")
    world.settle(NOW + 1000)
    assert (world.status["reason"], world.status["startTime"]) == ("ChildRefused", started)


def test_second_try_holds_its_nodes_again_before_it_lets_go() -> None:
    world = half()
    world.settle(NOW + 121)
    world.see(pods=())
    world.settle(NOW + 122)
    later = NOW + 1000
    world.settle(later)
    world.see(pods=(pod(0, owner=world.set_uid, phase="Pending"), waiting(world, 1, later)))
    world.settle(later + 59)
    assert world.writes.count("delete StatefulSet") == 1
    world.settle(later + 121)
    assert world.writes.count("delete StatefulSet") == 2
    assert world.status["halfPlaced"]["releases"] == 2


def test_startup_deadline_ends_the_tries() -> None:
    world = half(startupDeadlineSeconds=130)
    world.settle(NOW + 121)
    world.see(pods=())
    world.settle(NOW + 131)
    assert true_conditions(world.status) == ["Failed"]
    assert "HalfPlaced" in condition(world.status, "Failed")["message"]


def test_group_that_trains_forgets_the_tries() -> None:
    world = half()
    world.settle(NOW + 121)
    world.see(pods=())
    world.settle(NOW + 1000)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent())
    world.settle(NOW + 1001)
    assert true_conditions(world.status) == ["Running"]
    assert "halfPlaced" not in world.status


def test_job_without_the_limit_or_without_a_node_waits_on() -> None:
    for world in (half(halfPlacedSeconds=None), half()):
        if (
            world.job is not None
            and "halfPlacedSeconds" in world.job["spec"]
            and world.job["spec"]["halfPlacedSeconds"]
        ):
            world.see(pods=tuple(waiting(world, o, NOW) for o in range(3)))
        world.settle(NOW + 5000)
        assert "delete StatefulSet" not in world.writes


def test_elastic_group_that_can_train_keeps_its_nodes() -> None:
    world = half(elastic={"minReplicas": 1})
    world.see(pods=(pod(0, owner=world.set_uid), *world.observed.pods[1:]), agent=agent(phase="Rendezvous"))
    world.settle(NOW + 500)
    assert "delete StatefulSet" not in world.writes


def test_two_jobs_that_block_each_other_let_go_at_different_times() -> None:
    times = {round(60 * half_placed.fraction(f"uid-{number}", 0, "hold")) for number in range(20)}
    assert len(times) > 10
