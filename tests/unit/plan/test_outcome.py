"""Agents report the outcome in several places. Garbage is no outcome."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed, Plan
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    agent,
    condition,
    container,
    ended,
    job,
    outcome,
    pod,
    service,
    started,
    true_conditions,
)

FAILURE = {
    "attempt": 4,
    "rank": 1,
    "ordinal": 1,
    "pod": "digits-1",
    "exitCode": -9,
    "signal": "SIGKILL",
    "reason": "WorkerFailed",
}


def seen_with(*containers: Any, status: Any = None, **spec: Any) -> Plan:
    stored, child = started(**spec)
    found = tuple(pod(o, phase="Running", containerStatuses=[c]) for o, c in enumerate(containers))
    return plan(stored, Observed(stateful_set=child, service=service(), pods=found, agent=status), NOW + 9, SETTINGS)


@pytest.mark.parametrize("where", ["the last state", "the state", "a pod that is not the first", "/status"])
def test_success_is_found_in(where: str) -> None:
    end = ended(outcome())
    plans = {
        "the last state": lambda: seen_with(container(restarts=1, last=end)),
        "the state": lambda: seen_with(container(terminated=end)),
        "a pod that is not the first": lambda: seen_with(container(), container(restarts=1, last=end)),
        "/status": lambda: seen_with(container(), status=agent(phase="Finished", outcome=outcome())),
    }
    assert true_conditions(plans[where]().status) == ["Complete"]


REPORTED = {"phase": "Running", "attempt": 6, "startTime": NOW - 100}


def plan_after_outcome(now: Any, last: Any) -> Plan:
    """Returns the plan after a report of attempt 6 and a pod with the outcome `last`.

    `now`: what the agents report then.
    """
    stored, child = started()
    found = tuple(pod(o, phase="Running", containerStatuses=[container()]) for o in range(3))
    heard = Observed(stateful_set=child, service=service(), pods=found, agent=agent(**REPORTED))
    status = plan(stored, heard, NOW + 1, SETTINGS).status
    found = (*found[:2], pod(2, phase="Running", containerStatuses=[container(restarts=1, last=ended(last))]))
    seen = Observed(stateful_set=child, service=service(), pods=found, agent=now and agent(**now))
    return plan({**stored, "status": status}, seen, NOW + 9, SETTINGS)


@pytest.mark.parametrize("begun", [REPORTED["startTime"], None], ids=["of the same memory", "before its first attempt"])
def test_outcome_of_an_earlier_attempt_is_ignored(begun: Any) -> None:
    """A pod 0 that was replaced lives on, and has reported its outcome to another pod."""
    last = outcome("Failed", reason="RendezvousTimeout", attempt=1, startTime=begun)
    assert true_conditions(plan_after_outcome(REPORTED, last).status) == ["Running"]
    assert "Failed" not in true_conditions(plan_after_outcome(None, last).status), "even if the agents do not answer"


def test_attempts_before_a_suspension_supersede_no_outcome() -> None:
    stored, child = started({"agent": {"startTime": NOW - 900.0, "attempt": 6, "ofEarlierRun": True}})
    end = outcome("Failed", reason="RendezvousTimeout", attempt=5, startTime=None)
    found = (*(pod(o) for o in range(2)), pod(2, containerStatuses=[container(restarts=1, last=ended(end, 1))]))
    seen = Observed(stateful_set=child, service=service(), pods=found)
    assert true_conditions(plan(stored, seen, NOW + 9, SETTINGS).status) == ["Failed"]


def test_outcome_of_agents_that_crashed_before_any_attempt_counts() -> None:
    last = outcome("Failed", reason="RestartBudgetSpent", attempt=0, startTime=None)
    assert true_conditions(plan_after_outcome(None, last).status) == ["Failed"]


def test_outcome_of_agents_that_lost_their_memory_counts() -> None:
    last = outcome(attempt=1, startTime=NOW - 10)
    assert true_conditions(plan_after_outcome(None, last).status) == ["Complete"]


def test_outcome_of_the_later_attempt_wins() -> None:
    first, second = (ended(outcome(end, attempt=number)) for end, number in (("Failed", 1), ("Succeeded", 2)))
    assert true_conditions(seen_with(container(last=first), container(last=second)).status) == ["Complete"]


def test_failure_is_stored_with_its_evidence() -> None:
    end = outcome("Failed", failure=FAILURE, attempt=4, restarts={"inPlace": 3, "pod": 0, "counted": 3})
    status = seen_with(container(restarts=1, last=ended(end, 1))).status
    assert true_conditions(status) == ["Failed"]
    assert condition(status, "Failed")["reason"] == "RestartBudgetSpent"
    assert condition(status, "Failed")["message"] == "rank 1 was ended by SIGKILL"
    assert status["failures"] == [FAILURE]
    assert status["restarts"] == {"total": 3, "inPlace": 3, "pod": 0, "counted": 3}
    assert status["attempt"] == 4


@pytest.mark.parametrize(
    "message",
    [
        json.dumps(outcome(uid="another-job")),
        json.dumps(outcome())[:-20],
        json.dumps(outcome(version=2)),
        json.dumps(outcome(result="Maybe")),
        json.dumps([outcome()]),
        "[" * 100_000,
        "null",
        "",
        "Traceback (most recent call last):",
    ],
    ids=[
        "another uid",
        "cut short",
        "another version",
        "another result",
        "a list",
        "very deep",
        "null",
        "nothing",
        "a trace",
    ],
)
def test_invalid_outcome_is_ignored(message: str) -> None:
    assert true_conditions(seen_with(container(restarts=1, last=ended(message))).status) == []


@pytest.mark.parametrize(
    "fields",
    [
        {
            "restarts": "many",
            "progress": [],
            "checkpoint": 3,
            "recoveries": {"a": 1},
            "failure": "x",
            "productiveSeconds": "y",
        },
        {
            "restarts": {"inPlace": -1.5, "pod": True, "counted": 1e400},
            "attempt": None,
            "message": 5,
            "reason": "two words",
        },
        {"progress": {"step": 10**30, "loss": float("nan"), "time": -1, "metrics": {"a": "b", "c": 1}}, "reason": None},
        {"failure": {"time": 1e18, "logTail": "x" * 100_000, "exitCode": "9", "signal": 9}},
    ],
    ids=["wrong types", "wrong numbers", "numbers that are none", "too much"],
)
def test_garbage_fields_of_an_outcome_are_dropped(fields: dict[str, Any]) -> None:
    status = seen_with(container(restarts=1, last=ended(outcome(**fields)))).status
    assert true_conditions(status) == ["Complete"]
    assert condition(status, "Complete")["reason"] == "AllWorkersSucceeded"
    assert len(json.dumps(status, allow_nan=False)) < 10_000


def test_termination_message_of_a_sidecar_is_ignored() -> None:
    sidecar = container("sidecar", restarts=1, last=ended(outcome()))
    template = {"spec": {"containers": [{"name": "trainer"}, {"name": "sidecar", "image": "s"}]}}
    stored, child = started(template=template)
    found = (pod(0, phase="Running", containerStatuses=[sidecar, container()]),)
    status = plan(stored, Observed(stateful_set=child, service=service(), pods=found), NOW, SETTINGS).status
    assert true_conditions(status) == []


def test_single_container_of_any_name_is_the_trainer() -> None:
    template = {"spec": {"containers": [{"name": "pytorch"}]}}
    status = seen_with(container("pytorch", restarts=1, last=ended(outcome())), template=template).status
    assert true_conditions(status) == ["Complete"]


def test_outcome_takes_precedence_over_the_deadline() -> None:
    stored, child = started(activeDeadlineSeconds=10)
    found = (pod(0, phase="Running", containerStatuses=[container(restarts=1, last=ended(outcome()))]),)
    status = plan(stored, Observed(stateful_set=child, service=service(), pods=found), NOW + 99, SETTINGS).status
    assert true_conditions(status) == ["Complete"]


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_finished_job_is_never_started_again(end: str) -> None:
    """No observation and no change of the spec starts a finished job again."""
    over = seen_with(container(restarts=1, last=ended(outcome(end)))).status
    for spec in (
        {},
        {"suspend": True},
        {"replicas": 5},
        {"image": "b"},
        {"entrypoint": None},
        {"activeDeadlineSeconds": 1},
    ):
        for observed in (Observed(), Observed(service=service()), Observed(rejection="no"), Observed(pods=(pod(0),))):
            after = plan(job(over, generation=7, **spec), observed, NOW + 9999, SETTINGS)
            assert after.actions == ()
            assert after.status == over | {"observedGeneration": 7}


@pytest.mark.parametrize("owners", [[], [{"kind": "ReplicaSet", "uid": "x"}]], ids=["nobody's", "a Deployment's"])
def test_outcome_in_a_pod_of_no_statefulset_is_ignored(owners: Any) -> None:
    stored, child = started()
    stranger = pod(0, phase="Running", containerStatuses=[container(restarts=1, last=ended(outcome()))])
    stranger["metadata"]["ownerReferences"] = owners
    seen = Observed(stateful_set=child, service=service(), pods=(stranger,))
    assert true_conditions(plan(stored, seen, NOW + 1, SETTINGS).status) == []
