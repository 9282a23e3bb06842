"""startupDeadlineSeconds: a job that does not begin to train fails, and no other job does."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed, Plan
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, condition, container, job, pod, service, started

Object = dict[str, Any]
LIMIT = 600
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient gpu."}
NO_ATTEMPT = agent(attempt=0, phase="Rendezvous", startTime=None, phaseMessage="waiting for digits-1 (never seen)")


def made(ordinal: int, *, at: float = NOW, **status: Any) -> Object:
    found = pod(ordinal, **status)
    found["metadata"]["creationTimestamp"] = rfc3339(at)
    return found


def pending(ordinal: int, *, at: float = NOW) -> Object:
    return made(ordinal, at=at, phase="Pending", conditions=[UNSCHEDULED])


def look(
    *pods: Object, page: Object | None = None, after: float = LIMIT, status: Object | None = None, **more: Any
) -> Plan:
    stored, child = started(status, startupDeadlineSeconds=LIMIT)
    child["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=pods, agent=page, **more)
    return plan(stored, seen, NOW + after, SETTINGS)


def failed(wanted: Plan) -> Object:
    return condition(wanted.status, "Failed")


NO_IMAGE = container(waiting={"reason": "ErrImagePull"})
NEVER: dict[str, tuple[tuple[Object, ...], Object | None, str]] = {
    "a pod finds no node": ((made(0), pending(1), made(2)), NO_ATTEMPT, "Unschedulable: pod digits-1"),
    "pod 0 finds no node": ((pending(0), made(1), made(2)), None, "Unschedulable: pod digits-0"),
    "the agents don't meet": (tuple(made(n) for n in range(3)), NO_ATTEMPT, "waiting for digits-1"),
    "a pod is missing": ((made(0), made(1)), NO_ATTEMPT, "waiting for the StatefulSet to create all of its pods"),
    "an image can't be pulled": (
        tuple(made(n, phase="Pending", containerStatuses=[NO_IMAGE]) for n in range(3)), None, "ImagePullFailed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NEVER)
def test_job_that_never_begins_fails_with_what_it_waited_for(case: str) -> None:
    pods, page, message = NEVER[case]
    early = look(*pods, page=page, after=LIMIT - 5)
    assert failed(early) == {}
    assert early.requeue_after is not None
    assert early.requeue_after <= 5
    late = look(*pods, page=page)
    assert (failed(late)["status"], failed(late)["reason"]) == ("True", "StartupDeadlineExceeded")
    assert message in failed(late)["message"]
    assert [event.reason for event in late.events] == ["StartupDeadlineExceeded"]


BEGUN = agent(phase="Rendezvous", phaseReason="PodLost")
UNPROVEN: dict[str, tuple[tuple[Object, ...], Object | None]] = {
    "it runs": (tuple(made(n) for n in range(3)), agent()),
    "it ran, and waits for a pod": ((made(0), pending(1, at=NOW + 300), made(2)), BEGUN),
    "pod 0 is a replacement that remembers nothing yet": ((made(0, at=NOW + 300), made(1), made(2)), NO_ATTEMPT),
    "its agent does not answer": (tuple(made(n) for n in range(3)), None),
    "the missing pod is a replacement": ((made(0), pending(1, at=NOW + 300), made(2)), None),
    "all pods were lost": ((), None),
    "pod 0 looks for its group": (tuple(made(n) for n in range(3)), NO_ATTEMPT | {"leader": None}),
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_operator_that_was_away_judges_nothing_without_proof(case: str) -> None:
    """The stored status knows nothing of the attempts that ran meanwhile."""
    pods, page = UNPROVEN[case]
    wanted = look(*pods, page=page, after=LIMIT * 9)
    assert failed(wanted) == {}
    assert wanted.requeue_after is None or wanted.requeue_after > 0


def test_job_that_has_run_does_not_fail_for_a_later_start() -> None:
    running = look(*(made(n) for n in range(3)), page=agent(), after=9)
    stored, child = started(startupDeadlineSeconds=LIMIT)
    child["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=(made(0), pending(1), made(2)))
    again = plan(stored | {"status": running.status}, seen, NOW + LIMIT * 2, SETTINGS)
    assert failed(again) == {}


@pytest.mark.parametrize("fact", ["the condition", "the agents' memory"])
def test_job_that_has_run_does_not_fail_without_its_children(fact: str) -> None:
    """Somebody else has deleted the StatefulSet, and a quota keeps the operator from recreating it."""
    status = look(*(made(n) for n in range(3)), page=agent(), after=9).status
    if fact == "the condition":
        status = {name: value for name, value in status.items() if name != "agent"}
    else:
        status = {**status, "conditions": [c | {"status": "False"} for c in status["conditions"]]}
    stored = job(status, startupDeadlineSeconds=LIMIT)
    assert failed(plan(stored, Observed(refusal="exceeded quota"), NOW + LIMIT * 2, SETTINGS)) == {}


@pytest.mark.parametrize(("memory", "fails"), [
    ({"startTime": NOW - 900.0, "attempt": 3, "ofEarlierRun": True}, True),
    ({"startTime": NOW + 5.0, "attempt": 4}, False),
], ids=["before a suspension", "in this run"])  # fmt: skip
def test_only_an_attempt_of_this_run_ends_the_deadline(memory: Object, fails: bool) -> None:
    late = look(made(0), pending(1), made(2), page=NO_ATTEMPT, status={"agent": memory})
    assert bool(failed(late)) is fails


def test_suspended_time_does_not_count() -> None:
    suspended = {
        "type": "Suspended",
        "status": "True",
        "reason": "JobSuspended",
        "message": "",
        "lastTransitionTime": "x",
    }
    stopped = {"type": "Running", "status": "False", "reason": "JobSuspended", "message": "", "lastTransitionTime": "x"}
    stored = {"conditions": [suspended, stopped], "activeSeconds": LIMIT * 5.0}
    resumed = plan(job(stored, startupDeadlineSeconds=LIMIT), Observed(), NOW + LIMIT * 9, SETTINGS)
    assert failed(resumed) == {}
    assert resumed.status["startTime"] == rfc3339(NOW + LIMIT * 9)
    waits = plan(job(stored, startupDeadlineSeconds=LIMIT, suspend=True), Observed(), NOW + LIMIT * 9, SETTINGS)
    assert failed(waits) == {}


def test_rejected_children_end_at_the_startup_deadline() -> None:
    stored = plan(job(startupDeadlineSeconds=LIMIT), Observed(refusal="exceeded quota: gpus"), NOW, SETTINGS).status
    seen = Observed(refusal="exceeded quota: gpus")
    late = plan(job(stored, startupDeadlineSeconds=LIMIT), seen, NOW + LIMIT, SETTINGS)
    assert failed(late)["reason"] == "StartupDeadlineExceeded"
    assert "exceeded quota: gpus" in failed(late)["message"]


def test_job_without_the_field_waits_for_ever() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=(made(0), pending(1), made(2)), agent=NO_ATTEMPT)
    assert failed(plan(stored, seen, NOW + 10**7, SETTINGS)) == {}
