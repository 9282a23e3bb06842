"""Suspension deletes the pods and forgets nothing; resumption starts above all earlier attempts."""

from __future__ import annotations

from typing import Any

from tests.unit.plan.objects import NOW, World, agent, condition, job, pod, true_conditions


def running_world(**spec: Any) -> World:
    world = World(job(**spec))
    world.settle(NOW)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent(attempt=3, productiveSeconds=40.0))
    world.settle(NOW + 50)
    world.writes.clear()
    world.events.clear()
    return world


def change(world: World, **spec: Any) -> None:
    assert world.job is not None
    world.job["spec"] |= spec
    world.job["metadata"]["generation"] += 1


def floor(world: World) -> str:
    assert world.observed.stateful_set is not None
    env = world.observed.stateful_set["spec"]["template"]["spec"]["containers"][0]["env"]
    return str(next(e["value"] for e in env if e["name"] == "DTJ_ATTEMPT_FLOOR"))


def suspend(world: World, now: float) -> None:
    change(world, suspend=True)
    world.settle(now)
    world.see(pods=())
    world.settle(now + 3)


def test_job_created_suspended_gets_no_pods() -> None:
    world = World(job(suspend=True))
    world.settle(NOW)
    assert world.writes == ["status", "event JobSuspended"]
    assert true_conditions(world.status) == ["Suspended"]
    assert world.status["phase"] == "Suspended"
    assert "startTime" not in world.status
    world.settle(NOW + 100)
    assert len(world.writes) == 2


def test_agents_state_is_written_before_their_pods_are_deleted() -> None:
    world = running_world()
    change(world, suspend=True)
    world.see(agent=agent(attempt=4, productiveSeconds=41.0))
    world.reconcile(NOW + 51)
    assert world.writes == ["status"]
    assert world.status["attempt"] == 4
    world.reconcile(NOW + 51)
    assert world.writes == ["status", "delete StatefulSet"]


def test_suspended_is_true_once_the_last_pod_is_gone() -> None:
    world = running_world()
    change(world, suspend=True)
    world.settle(NOW + 51)
    assert true_conditions(world.status) == []
    assert condition(world.status, "Running")["reason"] == "JobSuspended"
    world.see(pods=world.observed.pods[2:])
    world.settle(NOW + 60)
    assert true_conditions(world.status) == []
    world.see(pods=())
    world.settle(NOW + 61)
    assert true_conditions(world.status) == ["Suspended"]
    assert world.status["ready"] == "0/3"
    assert [event.reason for event in world.events] == ["JobSuspended"]


def test_resumed_job_starts_above_all_earlier_attempts() -> None:
    world = running_world()
    suspend(world, NOW + 51)
    change(world, suspend=False)
    world.settle(NOW + 1000)
    assert floor(world) == "4"
    assert world.status["attempt"] == 3
    assert condition(world.status, "Suspended")["status"] == "False"
    assert condition(world.status, "Suspended")["reason"] == "JobResumed"
    assert [event.reason for event in world.events] == ["JobSuspended", "JobResumed"]


def test_suspended_time_counts_for_no_deadline_and_no_goodput() -> None:
    world = running_world(activeDeadlineSeconds=100)
    suspend(world, NOW + 57)
    assert "startTime" not in world.status
    assert world.status["activeSeconds"] == 60.0
    change(world, suspend=False)
    world.settle(NOW + 1000)
    assert condition(world.status, "Failed") == {}
    uid = world.set_uid
    world.see(
        pods=tuple(pod(o, owner=uid) for o in range(3)),
        agent=agent(attempt=4, startTime=NOW + 1000, productiveSeconds=26.0),
    )
    world.settle(NOW + 1050)
    assert world.status["productiveSeconds"] == 66.0
    assert world.status["goodput"] == 0.6


def test_restart_counters_continue_after_a_suspension() -> None:
    world = running_world()
    world.see(agent=agent(attempt=3, restarts={"inPlace": 2, "pod": 0, "counted": 2}))
    world.settle(NOW + 51)
    suspend(world, NOW + 60)
    change(world, suspend=False)
    world.settle(NOW + 70)
    fresh = agent(attempt=5, startTime=NOW + 71, restarts={"inPlace": 1, "pod": 0, "counted": 1})
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=fresh)
    world.settle(NOW + 80)
    assert world.status["restarts"] == {"total": 3, "inPlace": 3, "pod": 0, "counted": 3}


def test_restarts_of_orphaned_pods_are_counted_once_when_they_are_adopted() -> None:
    """Somebody deletes the StatefulSet with --cascade=orphan: its agents live through a suspension."""
    world = running_world()
    kept = agent(attempt=3, restarts={"inPlace": 2, "pod": 0, "counted": 2})
    world.see(agent=kept)
    world.settle(NOW + 51)
    suspend(world, NOW + 60)
    assert world.status["agent"]["ofEarlierRun"]
    change(world, suspend=False)
    world.settle(NOW + 70)
    adopted = tuple(pod(o, owner=world.set_uid) for o in range(3))
    world.see(pods=adopted, agent=kept)
    world.settle(NOW + 80)
    assert world.status["restarts"]["total"] == 2
    assert "ofEarlierRun" not in world.status["agent"]
    world.see(pods=adopted, agent=agent(attempt=4, restarts={"inPlace": 3, "pod": 0, "counted": 3}))
    world.settle(NOW + 90)
    assert world.status["restarts"]["total"] == 3


def test_spec_changed_while_suspended_shapes_the_new_pods() -> None:
    world = running_world()
    suspend(world, NOW + 51)
    change(world, image="trainer:2", replicas=4)
    change(world, suspend=False)
    world.settle(NOW + 70)
    assert world.observed.stateful_set is not None
    assert world.observed.stateful_set["spec"]["replicas"] == 4
    assert world.observed.stateful_set["spec"]["template"]["spec"]["containers"][0]["image"] == "trainer:2"


def test_unobserved_suspension_with_a_changed_spec_recreates_the_pods() -> None:
    world = running_world()
    change(world, image="trainer:2")
    world.settle(NOW + 60)
    assert world.writes == ["status", "delete StatefulSet"]
    assert true_conditions(world.status) == []
    world.settle(NOW + 61)
    assert world.observed.stateful_set is None, "the old pods still have the names of the new ones"
    world.see(pods=())
    world.settle(NOW + 62)
    assert world.observed.stateful_set is not None
    assert floor(world) == "4"


def test_new_pods_wait_for_pods_of_the_previous_run() -> None:
    world = running_world()
    change(world, suspend=True)
    world.settle(NOW + 51)
    change(world, suspend=False)
    world.settle(NOW + 52)
    assert world.observed.stateful_set is None
    world.see(pods=(pod(0, owner=None),))
    world.settle(NOW + 53)
    assert world.observed.stateful_set is not None, "a pod without an owner is adopted"


def test_suspended_job_ignores_its_deadline() -> None:
    world = running_world(activeDeadlineSeconds=100)
    suspend(world, NOW + 51)
    world.settle(NOW + 10_000)
    assert true_conditions(world.status) == ["Suspended"]


def test_crash_between_write_and_delete_loses_nothing() -> None:
    world = running_world()
    change(world, suspend=True)
    world.reconcile(NOW + 51, crash_after=0)
    world.reconcile(NOW + 52, crash_after=1)
    world.reconcile(NOW + 53, crash_after=1)
    world.see(pods=())
    world.settle(NOW + 60)
    assert true_conditions(world.status) == ["Suspended"]
    assert world.status["attempt"] == 3


def test_finished_job_that_is_suspended_stays_finished() -> None:
    world = running_world()
    world.see(agent=agent(phase="Finished", outcome={"version": 1, "uid": "job-uid", "result": "Succeeded"}))
    change(world, suspend=True)
    world.settle(NOW + 60)
    assert true_conditions(world.status) == ["Complete"]
    change(world, suspend=False)
    world.settle(NOW + 70)
    assert world.runs == 1
    assert world.observed.stateful_set is None
