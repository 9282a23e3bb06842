"""The API server refuses a child for now (a quota): the job says so, in the server's words, and goes on when it may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtj_operator.plan import plan
from dtj_operator.plan.model import Observed
from tests.plan.build import NOW, SETTINGS, World, agent, condition, job, pods, service, started, true_conditions

QUOTA = 'secrets "digits-dtj-agent" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=3, limited: secrets=3'


def test_a_job_whose_children_are_refused_is_pending_and_says_why_once() -> None:
    world = World(job())
    world.see(refusal=QUOTA)
    world.settle(NOW)
    running = condition(world.status, "Running")
    assert (running["status"], running["reason"]) == ("False", "ChildRefused")
    assert QUOTA in running["message"]
    assert (world.status["phase"], world.status["reason"], world.status["ready"]) == ("Pending", "ChildRefused", "0/3")
    assert world.writes == ["status", "event ChildRefused"]
    again = world.reconcile(NOW + 30)
    assert again is not None
    assert (again.actions, again.events, again.status) == ((), (), world.status)
    assert again.requeue_after == 30


def test_it_begins_when_it_is_let_and_not_before() -> None:
    world = World(job(activeDeadlineSeconds=10))
    world.see(refusal=QUOTA)
    world.settle(NOW)
    assert "startTime" not in world.status
    world.settle(NOW + 100)
    assert world.status["phase"] == "Pending", "its deadline does not run yet"
    world.see(refusal=None)
    world.settle(NOW + 101)
    assert world.runs == 1
    assert (world.status["reason"], [e.reason for e in world.events]) == ("PodsPending", ["ChildRefused", "ChildrenCreated"])


def test_a_resumed_job_that_is_refused_is_not_called_suspended() -> None:
    world = World(job(suspend=True))
    world.settle(NOW)
    assert true_conditions(world.status) == ["Suspended"]
    assert world.job is not None
    world.job["spec"]["suspend"] = False
    world.see(refusal=QUOTA)
    world.settle(NOW + 1)
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "ChildRefused")
    world.see(refusal=None)
    world.settle(NOW + 2)
    assert (world.runs, world.status["reason"]) == (1, "PodsPending")


def test_a_stateful_set_that_was_deleted_and_may_not_be_made_again_is_told_as_a_restart() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    running = plan(stored, seen, NOW, SETTINGS)
    refused = plan(job(running.status), Observed(service=service(), refusal=QUOTA), NOW + 1, SETTINGS)
    assert true_conditions(refused.status) == ["Restarting"]
    assert condition(refused.status, "Restarting")["reason"] == "ChildRefused"
    assert refused.status["startTime"] == running.status["startTime"]


@pytest.mark.parametrize("kind", ["rejection", "refusal"])
def test_a_training_that_runs_goes_on_without_a_repair_that_is_refused(kind: str) -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=None, pods=pods(), agent=agent())
    assert len(plan(stored, seen, NOW, SETTINGS).actions) == 1
    refused = plan(stored, replace(seen, **{kind: "no Services now"}), NOW, SETTINGS)
    assert true_conditions(refused.status) == ["Running"]
    assert refused.actions == ()
