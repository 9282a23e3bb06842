"""Counters survive the loss of all pods and never go backwards; histories keep the newest five."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan, restarts
from dtj_core.plan.agent_report import Report, report_from_status
from dtj_core.plan.model import Observed, Plan
from tests.unit.plan.build import NOW, SETTINGS, UID, agent, condition, job, outcome, pods, service, started

Object = dict[str, Any]


def said(in_place: int = 0, pod: int = 0, counted: int = 0, *, memory: float = NOW, seconds: float = 0.0, **more: Any) -> Report:
    counters = {"inPlace": in_place, "pod": pod, "counted": counted}
    report = report_from_status(agent(restarts=counters, startTime=memory, productiveSeconds=seconds, **more), UID)
    assert report is not None
    return report


def totals(*reports: Report) -> list[int]:
    status: Object = {}
    found = []
    for report in reports:
        status = restarts.merge(status, report)
        found.append(status["restarts"]["total"])
    return found


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([said(1), said(1), said(2, 1)], [1, 1, 3]),
        ([said(3, 1), said(0, 0, memory=NOW + 99), said(1, 0, memory=NOW + 99)], [4, 4, 5]),
        ([said(3), said(4, memory=NOW + 99)], [3, 7]),
        ([said(3), said(2), said(3), said(4)], [3, 3, 3, 4]),
        ([said(2), said(0, memory=None), said(3)], [2, 2, 3]),  # type: ignore[arg-type]
    ],
    ids=[
        "one memory: only the difference is added",
        "all agents forgot: theirs begins at 0 and ours goes on",
        "all agents forgot and have restarted more often since",
        "an old answer that comes late is not counted again",
        "an agent before its first attempt says nothing",
    ],
)
def test_counters(reports: list[Report], expected: list[int]) -> None:
    assert totals(*reports) == expected


def test_productive_seconds_add_up_over_two_memories() -> None:
    status = restarts.merge({}, said(seconds=100.0))
    status = restarts.merge(status, said(seconds=30.0, memory=NOW + 200))
    assert status["productiveSeconds"] == 130.0


def test_the_attempt_never_goes_down() -> None:
    status = restarts.merge({"attempt": 7}, said(attempt=2))
    assert status["attempt"] == 7


def test_the_newest_five_failures_and_recoveries_are_kept_over_two_memories() -> None:
    def failures(*attempts: int) -> list[Object]:
        return [{"attempt": a, "rank": 0, "ordinal": 0, "reason": "WorkerFailed"} for a in attempts]

    def recoveries(*attempts: int) -> list[Object]:
        return [{"attempt": a, "kind": "InPlace"} for a in attempts]

    status = restarts.merge({}, said(failures=failures(1, 2, 3), recoveries=recoveries(2, 3, 4)))
    status = restarts.merge(status, said(memory=NOW + 9, failures=failures(5, 6, 7), recoveries=recoveries(6, 7, 8)))
    assert [f["attempt"] for f in status["failures"]] == [2, 3, 5, 6, 7]
    assert [r["attempt"] for r in status["recoveries"]] == [3, 4, 6, 7, 8]


def test_what_becomes_known_of_a_recovery_later_replaces_what_was_known() -> None:
    status = restarts.merge({}, said(recoveries=[{"attempt": 2, "seconds": {"stop": 0.3}}]))
    status = restarts.merge(
        status, said(recoveries=[{"attempt": 2, "seconds": {"stop": 0.3, "firstStep": 0.2}, "lostSteps": 20}])
    )
    assert status["recoveries"] == [{"attempt": 2, "seconds": {"stop": 0.3, "firstStep": 0.2}, "lostSteps": 20}]


def look(stored: Object, child: Object, seconds: float, **fields: Any) -> Plan:
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent(**fields))
    return plan(stored, seen, NOW + seconds, SETTINGS)


def test_a_restart_that_was_over_before_anybody_looked_is_written_at_once_and_told() -> None:
    stored, child = started()
    first = look(stored, child, 1)
    failure = {"attempt": 1, "rank": 1, "ordinal": 1, "reason": "WorkerFailed", "message": "rank 1 was ended by SIGKILL"}
    recovery = {"attempt": 2, "kind": "InPlace", "reason": "WorkerFailed", "seconds": {"detect": 0.01}}
    after = look(
        job(first.status),
        child,
        3,
        attempt=2,
        restarts={"inPlace": 1, "pod": 0, "counted": 1},
        failures=[failure],
        recoveries=[recovery],
    )
    assert after.status["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}
    assert [event.reason for event in after.events] == ["WorkerFailed", "WorkersRunning"]
    assert condition(after.status, "Running")["message"] == "attempt 2 is running on 3 pods"
    assert condition(after.status, "Running")["lastTransitionTime"] == condition(first.status, "Running")["lastTransitionTime"]


def test_the_cost_of_a_recovery_is_written_once_it_is_known() -> None:
    stored, child = started()
    status = look(stored, child, 1, attempt=2, recoveries=[{"attempt": 2, "seconds": {"stop": 0.1}}]).status
    status_2 = look(job(status), child, 2, attempt=2, recoveries=[{"attempt": 2, "seconds": {"stop": 0.1, "load": 1.0}}]).status
    assert status_2 == status
    cost = {"stop": 0.1, "load": 1.0, "firstStep": 0.2}
    assert look(job(status), child, 3, attempt=2, recoveries=[{"attempt": 2, "seconds": cost}]).status["recoveries"] == [
        {"attempt": 2, "seconds": cost}
    ]


def test_a_phase_of_0_seconds_is_not_known_yet() -> None:
    stored, child = started()
    begun = dict.fromkeys(names.RECOVERY_PHASES, 0.0) | {"stop": 0.1}
    status = look(stored, child, 1, attempt=2, recoveries=[{"attempt": 2, "seconds": begun}]).status
    cost = begun | {"load": 1.0, "firstStep": 0.2}
    assert look(job(status), child, 3, attempt=2, recoveries=[{"attempt": 2, "seconds": cost}]).status["recoveries"] == [
        {"attempt": 2, "seconds": cost}
    ]


@pytest.mark.parametrize("last", ["the end", "a suspension"])
def test_warnings_that_come_with_the_last_answer_are_told_too(last: str) -> None:
    stored, child = started()
    status = look(stored, child, 1).status
    torn = {"type": "Warning", "reason": "CheckpointTorn", "message": "step-00000100 is skipped", "time": NOW + 1, "id": 1}
    after = job(status, suspend=True) if last == "a suspension" else job(status)
    said = {"events": [torn]} | ({"phase": "Finished", "outcome": outcome()} if last == "the end" else {})
    assert "CheckpointTorn" in [event.reason for event in look(after, child, 2, **said).events]


def test_warnings_of_the_agent_become_events_once() -> None:
    stored, child = started()
    torn = {"type": "Warning", "reason": "CheckpointTorn", "message": "step-00000100 is skipped", "time": NOW + 1, "id": 1}
    normal = {"type": "Normal", "reason": "WorldResized", "message": "", "time": NOW + 2, "id": 2}
    first = look(stored, child, 1, events=[torn, normal])
    assert [event.reason for event in first.events] == ["WorkersRunning", "CheckpointTorn"]
    second = look(job(first.status), child, 2, events=[torn, normal])
    assert (second.events, second.status) == ((), first.status)
    later = look(job(first.status), child, 40, events=[torn, normal, torn | {"time": NOW + 3, "id": 3}])
    assert [event.reason for event in later.events] == ["CheckpointTorn"]


@pytest.mark.parametrize(
    "other", [{"uid": "another-job"}, {"version": 2}, {"uid": None}], ids=["another job's", "another version's", "nobody's"]
)
def test_a_status_that_is_not_this_job_s_is_as_none(other: Object) -> None:
    stored, child = started()
    assert look(stored, child, 1, attempt=9, **other).status.get("attempt") is None
