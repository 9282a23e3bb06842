"""A job from creation to its end: its writes, their time and their number."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Delete, Observed
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    World,
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
    true_conditions,
)


def run_to_completion(seconds: int, **spec: Any) -> World:
    """Runs a job of 3 pods that trains for so many seconds, with reconciles as the operator would
    run them.
    """
    world = World(job(**spec))
    world.settle(NOW)
    uid = world.set_uid
    # Each pod that starts is an event.
    for up in range(3):
        states = [pod(o, owner=uid) if o < up else pod(o, owner=uid, phase="Pending") for o in range(3)]
        world.see(pods=tuple(states))
        world.settle(NOW + 1 + up)
    world.see(
        pods=tuple(pod(o, owner=uid) for o in range(3)), agent=agent(attempt=0, phase="Rendezvous", startTime=None)
    )
    world.settle(NOW + 4)
    for second in range(5, 5 + seconds, 2):
        world.see(
            agent=agent(
                progress={"step": second, "totalSteps": 1000, "time": NOW + second}, productiveSeconds=second - 4.5
            )
        )
        world.settle(NOW + second)
    done = container(restarts=1, last=ended(outcome(progress={"step": 1000, "totalSteps": 1000, "time": NOW})))
    world.see(pods=tuple(pod(o, owner=uid, phase="Running", containerStatuses=[done]) for o in range(3)), agent=None)
    world.settle(NOW + 5 + seconds)
    return world


def test_agent_that_never_answered_is_named_in_the_condition() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods())
    status = plan(stored, seen, NOW + 31, SETTINGS).status
    assert condition(status, "Running")["reason"] == "Rendezvous"
    assert "NetworkPolicy" in condition(status, "Running")["message"]


def test_short_job_of_three_pods_costs_ten_writes() -> None:
    world = run_to_completion(20)
    assert world.writes == [
        "apply Secret",
        "apply Service",
        "apply StatefulSet",
        "status",
        "status",
        "event WorkersRunning",
        "status",  # the first estimate of the end
        "status",
        "event AllWorkersSucceeded",
        "delete StatefulSet",
    ]
    assert true_conditions(world.status) == ["Complete"]


def test_longer_job_costs_one_more_write_per_half_minute() -> None:
    assert len(run_to_completion(20 + 120).writes) == 10 + 4


def test_undisturbed_job_tells_its_story_in_two_events() -> None:
    world = run_to_completion(20, processesPerPod=2)
    assert [(event.type, event.reason, event.message) for event in world.events] == [
        ("Normal", "WorkersRunning", "attempt 1 is running 6 ranks on 3 pods"),
        ("Normal", "AllWorkersSucceeded", "all 3 ranks exited with 0"),
    ]


def test_outcome_is_written_before_pods_are_deleted() -> None:
    stored, child = started()
    done = tuple(pod(o, phase="Running", containerStatuses=[container(last=ended(outcome()))]) for o in range(3))
    seen = Observed(stateful_set=child, service=service(), pods=done)
    first = plan(stored, seen, NOW + 9, SETTINGS)
    assert first.actions == ()
    assert true_conditions(first.status) == ["Complete"]
    assert first.requeue_after == 0
    second = plan(job(first.status), seen, NOW + 9, SETTINGS)
    assert second.actions == (Delete(kind="StatefulSet", name="digits", uid="set-uid"),)


def test_finished_job_shows_its_result_in_every_condition() -> None:
    world = run_to_completion(20)
    assert world.status["phase"] == "Complete"
    assert world.status["reason"] == "AllWorkersSucceeded"
    assert condition(world.status, "Running")["status"] == "False"
    assert condition(world.status, "Complete")["message"] == "all 3 ranks exited with 0"
    assert world.status["completionTime"] == "2026-09-21T14:13:45Z"
    assert world.status["progress"]["percent"] == 100.0
    assert world.status["ready"] == "0/3"


@pytest.mark.parametrize("seconds", [0, 1, 29])
def test_progress_alone_is_not_written_within_thirty_seconds(seconds: float) -> None:
    stored, child = started()
    report = agent(progress={"step": 6, "time": NOW})
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report)
    running = plan(stored, seen, NOW, SETTINGS)
    later = Observed(
        stateful_set=child,
        service=service(),
        pods=pods(),
        agent=agent(progress={"step": 7, "time": NOW}, productiveSeconds=3.0),
    )
    after = plan(job(running.status), later, NOW + seconds, SETTINGS)
    assert after.status == running.status
    assert after.actions == ()
    assert after.events == ()
    assert after.requeue_after is not None
    assert after.requeue_after <= SETTINGS.status_poll_seconds


def test_progress_is_written_after_thirty_seconds() -> None:
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    report = agent(progress={"step": 7, "time": NOW})
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report)
    assert plan(job(running.status), seen, NOW + 30, SETTINGS).status["progress"]["step"] == 7


def test_first_reconcile_creates_all_children_and_its_status_reports_them() -> None:
    first = plan(job(), Observed(), NOW, SETTINGS)
    assert [a.body["kind"] for a in first.actions if isinstance(a, Apply)] == ["Secret", "Service", "StatefulSet"]
    assert first.events == (), "an event is one more write, and would state the same"
    assert first.status["phase"] == "Pending"
    assert condition(first.status, "Running")["message"] == "creating the pods"
    assert first.status["startTime"] == "2026-09-21T14:13:20Z"


def test_terminating_job_is_left_alone() -> None:
    body = job({"phase": "Running"})
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    gone = plan(body, Observed(), NOW, SETTINGS)
    assert (gone.actions, gone.status, gone.requeue_after) == ((), {"phase": "Running"}, None)


def test_rejected_template_fails_the_job_with_the_servers_message() -> None:
    message = 'StatefulSet.apps "digits" is invalid: spec.template.spec.containers[0].image: Required value'
    end = plan(job(), Observed(rejection=message), NOW, SETTINGS)
    assert condition(end.status, "Failed")["reason"] == "TemplateRejected"
    assert condition(end.status, "Failed")["message"] == message + "; in the job: spec.image"
    assert end.actions == ()
    after = plan(job(end.status), Observed(), NOW, SETTINGS)
    assert (after.actions, after.requeue_after) == ((), None)


def test_stored_spec_that_breaks_a_rule_fails_the_job_with_the_field() -> None:
    body = job(template={"spec": {"volumes": [{"name": "dtj-state", "emptyDir": {}}]}})
    end = plan(body, Observed(), NOW, SETTINGS)
    assert condition(end.status, "Failed")["reason"] == "InvalidSpec"
    assert "spec.template.spec.volumes: names that begin with 'dtj-'" in condition(end.status, "Failed")["message"]
    assert end.actions == ()
