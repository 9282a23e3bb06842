"""The API server rejects a child for now (a quota): the job reports it, and continues once
admitted.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    World,
    agent,
    condition,
    job,
    pod,
    pods,
    service,
    started,
    stateful_set,
    true_conditions,
)

QUOTA = (
    'secrets "digits-dtj-agent" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=3, '
    "limited: secrets=3"
)

UNKNOWN = 'pods "digits-dry-run" is forbidden: status unknown for quota: q, resources: pods'
WEBHOOK = 'admission webhook "images.example.org" denied the request: not scanned yet'
LIMITS = 'pods "digits-dry-run" is forbidden: minimum memory usage per Container is 1Gi, but request is 64Mi'
PSS = 'pods "digits-dry-run" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'


def test_job_with_refused_children_is_pending_with_one_event() -> None:
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


@pytest.mark.parametrize("refusal", [QUOTA, WEBHOOK, UNKNOWN, LIMITS, PSS])
def test_lasting_refusal_is_bounded_by_the_deadline_alone(refusal: str) -> None:
    world = World(job(activeDeadlineSeconds=100_000))
    world.see(refusal=refusal)
    world.settle(NOW)
    looks = world.reconcile(NOW + 99_990)
    assert looks is not None
    assert (world.status["phase"], looks.requeue_after) == ("Pending", 10)
    world.settle(NOW + 100_000)
    assert condition(world.status, "Failed")["reason"] == "DeadlineExceeded"
    assert world.runs == 0


def test_refusal_without_a_deadline_fails_no_job() -> None:
    world = World(job())
    world.see(refusal=WEBHOOK)
    for day in range(30):
        world.settle(NOW + day * 86_400)
    assert true_conditions(world.status) == []
    assert [event.reason for event in world.events] == ["ChildRefused"]


@pytest.mark.parametrize("kind", ["rejection", "refusal"])
@pytest.mark.parametrize("suspended", [True, False], ids=["resumed", "its set was deleted"])
def test_refusal_never_fails_a_job_that_has_run(kind: str, suspended: bool) -> None:
    world = World(job())
    world.settle(NOW)
    world.see(service=service(), pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent(attempt=4))
    world.settle(NOW + 60)
    assert true_conditions(world.status) == ["Running"]
    assert world.job is not None
    if suspended:
        world.job["spec"]["suspend"] = True
        world.settle(NOW + 120)
        world.see(pods=())
        world.settle(NOW + 130)
        assert true_conditions(world.status) == ["Suspended"]
        world.job["spec"]["suspend"] = False
    world.see(stateful_set=None, pods=(), agent=None, **{kind: "no"})
    three_weeks = NOW + 21 * 86_400
    world.settle(three_weeks)
    assert condition(world.status, "Running")["reason"] == "ChildRefused"
    assert condition(world.status, "Failed") == {}
    world.see(**{kind: None})
    world.settle(three_weeks + 60)
    assert (world.runs, condition(world.status, "Failed")) == (2, {})


def test_rejected_new_job_fails_with_the_servers_message() -> None:
    world = World(job())
    world.see(rejection="spec.template.spec.containers[0].image: Required value")
    world.settle(NOW)
    failed = condition(world.status, "Failed")
    assert (failed["reason"], failed["message"]) == (
        "TemplateRejected",
        "spec.template.spec.containers[0].image: Required value; in the job: spec.image",
    )


def test_refused_job_starts_once_it_is_admitted() -> None:
    world = World(job())
    world.see(refusal=QUOTA)
    world.settle(NOW)
    world.settle(NOW + 100)
    assert world.runs == 0
    world.see(refusal=None)
    world.settle(NOW + 101)
    assert world.runs == 1
    assert (world.status["reason"], [e.reason for e in world.events]) == (
        "PodsPending",
        ["ChildRefused", "ChildrenCreated"],
    )


def test_resumed_job_that_is_refused_is_not_suspended() -> None:
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


def test_deleted_statefulset_that_is_refused_is_reported_as_restarting() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    running = plan(stored, seen, NOW, SETTINGS)
    refused = plan(job(running.status), Observed(service=service(), refusal=QUOTA), NOW + 1, SETTINGS)
    assert true_conditions(refused.status) == ["Restarting"]
    assert condition(refused.status, "Restarting")["reason"] == "ChildRefused"
    assert refused.status["startTime"] == running.status["startTime"]


@pytest.mark.parametrize("kind", ["rejection", "refusal"])
def test_running_job_continues_without_a_refused_repair(kind: str) -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=None, pods=pods(), agent=agent())
    assert len(plan(stored, seen, NOW, SETTINGS).actions) == 1
    refused = plan(stored, replace(seen, **{kind: "no Services now"}), NOW, SETTINGS)
    assert true_conditions(refused.status) == ["Running"]
    assert refused.actions == ()


@pytest.mark.parametrize("resources", [{"cpu": "1", "memory": "1Gi"}, {}], ids=str)
def test_agent_resources_come_from_the_settings(resources: dict[str, str]) -> None:
    made = stateful_set(plan(job(), Observed(), NOW, replace(SETTINGS, agent_resources=resources)))
    installer = made["spec"]["template"]["spec"]["initContainers"][0]
    assert installer.get("resources", {}) == ({"requests": resources, "limits": resources} if resources else {})
