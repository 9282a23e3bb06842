"""`kubectl delete statefulset --cascade=orphan` leaves pods without an owner that keep training."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_contract import names
from tests.unit.plan.objects import NOW, UID, World, agent, condition, job, pod, true_conditions


def orphaned(uid: str = UID) -> tuple[World, tuple[Any, ...]]:
    """Returns a job that ran, without its StatefulSet, and the pods left behind."""
    world = World(job())
    world.settle(NOW)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent())
    world.settle(NOW + 1)
    left = tuple(pod(o, owner=None) for o in range(3))
    for each in left:
        each["spec"]["containers"] = [{"name": "trainer", "env": [{"name": names.ENV_JOB_UID, "value": uid}]}]
    world.see(stateful_set=None, pods=left, agent=None)
    world.writes.clear()
    return world, left


def suspend(world: World) -> None:
    assert world.job is not None
    world.job["spec"]["suspend"] = True
    world.job["metadata"]["generation"] += 1


def test_suspended_job_deletes_orphaned_pods_before_it_is_suspended() -> None:
    world, _ = orphaned()
    suspend(world)
    world.reconcile(NOW + 2)
    assert true_conditions(world.status) == []
    world.reconcile(NOW + 2)
    assert world.writes.count("delete Pod") == 3
    world.settle(NOW + 3)
    assert true_conditions(world.status) == ["Suspended"]


def test_terminating_orphan_keeps_a_job_from_being_suspended() -> None:
    world, left = orphaned()
    left[1]["metadata"]["deletionTimestamp"] = "2200-01-01T00:00:00Z"
    world.see(pods=left[1:2])
    suspend(world)
    world.settle(NOW + 2)
    assert "delete Pod" not in world.writes
    assert true_conditions(world.status) == []


def test_foreign_pod_without_an_owner_is_left_alone() -> None:
    world, _ = orphaned(uid="another")
    suspend(world)
    world.settle(NOW + 2)
    assert "delete Pod" not in world.writes
    assert true_conditions(world.status) == ["Suspended"]


def test_active_job_leaves_orphans_to_its_next_statefulset() -> None:
    world, _ = orphaned()
    world.settle(NOW + 2)
    assert "delete Pod" not in world.writes
    assert "apply StatefulSet" in world.writes


@pytest.mark.parametrize(("policy", "deleted"), [("All", 3), ("None", 0)])
def test_finished_job_deletes_orphaned_pods_by_its_policy(policy: str, deleted: int) -> None:
    """No garbage collector would, and the pods hold GPUs."""
    world, left = orphaned()
    assert world.job is not None
    world.job["spec"]["cleanPodPolicy"] = policy
    world.job["spec"]["activeDeadlineSeconds"] = 5
    world.reconcile(NOW + 6)
    assert true_conditions(world.status) == ["Failed"]
    world.reconcile(NOW + 6)
    assert world.writes.count("delete Pod") == deleted
    assert len(left) - len(world.observed.pods) == deleted


def test_pods_of_a_deleted_job_of_that_name_are_not_adopted() -> None:
    """The StatefulSet would adopt them, and their agents reject those of this job."""
    world, _ = orphaned(uid="another")
    world.settle(NOW + 2)
    assert "apply StatefulSet" not in world.writes
    assert "delete Pod" not in world.writes
    assert condition(world.status, "Running")["reason"] == "ChildConflict"
    assert "pod digits-0 was created for a deleted job" in condition(world.status, "Running")["message"]
    world.see(pods=())
    world.settle(NOW + 3)
    assert "apply StatefulSet" in world.writes
