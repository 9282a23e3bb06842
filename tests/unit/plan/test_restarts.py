"""Counters survive the loss of all pods and never decrease; histories keep the newest five."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan, restarts
from dtj_core.plan.agent_report import Report, report_from_status
from dtj_core.plan.model import Observed, Plan
from tests.unit.plan.objects import NOW, SETTINGS, UID, agent, condition, job, outcome, pods, service, started

Object = dict[str, Any]


def reported(
    in_place: int = 0, pod: int = 0, counted: int = 0, *, memory: float = NOW, seconds: float = 0.0, **more: Any
) -> Report:
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
        ([reported(1), reported(1), reported(2, 1)], [1, 1, 3]),
        ([reported(3, 1), reported(0, 0, memory=NOW + 99), reported(1, 0, memory=NOW + 99)], [4, 4, 5]),
        ([reported(3), reported(4, memory=NOW + 99)], [3, 7]),
        ([reported(3), reported(2), reported(3), reported(4)], [3, 3, 3, 4]),
        ([reported(2), reported(0, memory=None), reported(3)], [2, 2, 3]),  # type: ignore[arg-type]
    ],
    ids=[
        "one memory: only the difference is added",
        "all agents lost their memory: their counters begin at 0, ours continue",
        "all agents lost their memory and have restarted more often since",
        "a late answer is not counted again",
        "an agent before its first attempt reports no counters",
    ],
)
def test_counters_add_up_over_reports(reports: list[Report], expected: list[int]) -> None:
    assert totals(*reports) == expected


def test_productive_seconds_add_up_over_two_memories() -> None:
    status = restarts.merge({}, reported(seconds=100.0))
    status = restarts.merge(status, reported(seconds=30.0, memory=NOW + 200))
    assert status["productiveSeconds"] == 130.0


def test_attempt_never_decreases() -> None:
    status = restarts.merge({"attempt": 7}, reported(attempt=2))
    assert status["attempt"] == 7


def test_newest_five_failures_and_recoveries_are_kept_over_two_memories() -> None:
    def failures(*attempts: int) -> list[Object]:
        return [{"attempt": a, "rank": 0, "ordinal": 0, "reason": "WorkerFailed"} for a in attempts]

    def recoveries(*attempts: int) -> list[Object]:
        return [{"attempt": a, "kind": "InPlace"} for a in attempts]

    status = restarts.merge({}, reported(failures=failures(1, 2, 3), recoveries=recoveries(2, 3, 4)))
    status = restarts.merge(
        status, reported(memory=NOW + 9, failures=failures(5, 6, 7), recoveries=recoveries(6, 7, 8))
    )
    assert [f["attempt"] for f in status["failures"]] == [2, 3, 5, 6, 7]
    assert [r["attempt"] for r in status["recoveries"]] == [3, 4, 6, 7, 8]


def test_later_report_of_a_recovery_replaces_the_earlier_one() -> None:
    status = restarts.merge({}, reported(recoveries=[{"attempt": 2, "seconds": {"stop": 0.3}}]))
    status = restarts.merge(
        status, reported(recoveries=[{"attempt": 2, "seconds": {"stop": 0.3, "firstStep": 0.2}, "lostSteps": 20}])
    )
    assert status["recoveries"] == [{"attempt": 2, "seconds": {"stop": 0.3, "firstStep": 0.2}, "lostSteps": 20}]


def look(stored: Object, child: Object, seconds: float, **fields: Any) -> Plan:
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent(**fields))
    return plan(stored, seen, NOW + seconds, SETTINGS)


def test_unobserved_restart_is_written_at_once_with_an_event() -> None:
    stored, child = started()
    first = look(stored, child, 1)
    failure = {
        "attempt": 1,
        "rank": 1,
        "ordinal": 1,
        "reason": "WorkerFailed",
        "message": "rank 1 was ended by SIGKILL",
    }
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
    assert condition(after.status, "Running")["message"] == "attempt 2 is running 3 ranks on 3 pods"
    assert (
        condition(after.status, "Running")["lastTransitionTime"]
        == condition(first.status, "Running")["lastTransitionTime"]
    )


def test_cost_of_a_recovery_is_written_once_it_is_known() -> None:
    stored, child = started()
    status = look(stored, child, 1, attempt=2, recoveries=[{"attempt": 2, "seconds": {"stop": 0.1}}]).status
    status_2 = look(
        job(status), child, 2, attempt=2, recoveries=[{"attempt": 2, "seconds": {"stop": 0.1, "load": 1.0}}]
    ).status
    assert status_2 == status
    cost = {"stop": 0.1, "load": 1.0, "firstStep": 0.2}
    assert look(job(status), child, 3, attempt=2, recoveries=[{"attempt": 2, "seconds": cost}]).status[
        "recoveries"
    ] == [{"attempt": 2, "seconds": cost}]


def test_recovery_phase_of_0_seconds_is_unknown() -> None:
    stored, child = started()
    begun = dict.fromkeys(names.RECOVERY_PHASES, 0.0) | {"stop": 0.1}
    status = look(stored, child, 1, attempt=2, recoveries=[{"attempt": 2, "seconds": begun}]).status
    cost = begun | {"load": 1.0, "firstStep": 0.2}
    assert look(job(status), child, 3, attempt=2, recoveries=[{"attempt": 2, "seconds": cost}]).status[
        "recoveries"
    ] == [{"attempt": 2, "seconds": cost}]


@pytest.mark.parametrize("last", ["the end", "a suspension"])
def test_warnings_in_the_last_answer_become_events(last: str) -> None:
    stored, child = started()
    status = look(stored, child, 1).status
    torn = {
        "type": "Warning",
        "reason": "CheckpointTorn",
        "message": "step-00000100 is skipped",
        "time": NOW + 1,
        "id": 1,
    }
    after = job(status, suspend=True) if last == "a suspension" else job(status)
    fields = {"events": [torn]} | ({"phase": "Finished", "outcome": outcome()} if last == "the end" else {})
    assert "CheckpointTorn" in [event.reason for event in look(after, child, 2, **fields).events]


def test_agent_warnings_become_events_once() -> None:
    stored, child = started()
    torn = {
        "type": "Warning",
        "reason": "CheckpointTorn",
        "message": "step-00000100 is skipped",
        "time": NOW + 1,
        "id": 1,
    }
    normal = {"type": "Normal", "reason": "WorldResized", "message": "", "time": NOW + 2, "id": 2}
    first = look(stored, child, 1, events=[torn, normal])
    assert [event.reason for event in first.events] == ["WorkersRunning", "CheckpointTorn"]
    second = look(job(first.status), child, 2, events=[torn, normal])
    assert (second.events, second.status) == ((), first.status)
    later = look(job(first.status), child, 40, events=[torn, normal, torn | {"time": NOW + 3, "id": 3}])
    assert [event.reason for event in later.events] == ["CheckpointTorn"]


@pytest.mark.parametrize(
    "other",
    [{"uid": "another-job"}, {"version": 2}, {"uid": None}],
    ids=["another job's", "another version's", "nobody's"],
)
def test_agent_status_of_another_job_is_ignored(other: Object) -> None:
    stored, child = started()
    assert look(stored, child, 1, attempt=9, **other).status.get("attempt") is None


def loss(ordinal: int) -> Object:
    message = f"pod digits-{ordinal} on node w1 was lost"
    return {"attempt": 1, "rank": ordinal, "ordinal": ordinal, "pod": f"digits-{ordinal}", "reason": "PodLost",
            "message": message}  # fmt: skip


STOPPING, GATHERING = {"phase": "Stopping", "phaseReason": "PodLost"}, {"phase": "Rendezvous", "phaseReason": "PodLost"}
NO_LEADER = {"phase": "Rendezvous", "phaseReason": "Rendezvous"}
LOSSES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "listed at once": ([{**GATHERING, "failures": [loss(1)]}], 1),
    "the group stops first": ([STOPPING, {**GATHERING, "failures": [loss(1)]}], 1),
    "a new coordinator": (
        [{**GATHERING, "failures": [loss(1)]}, NO_LEADER, {**GATHERING, "failures": [loss(1)]}], 1
    ),
    "the group trains again": ([STOPPING, {"attempt": 2, "failures": [loss(1)]}], 1),
    "two pods": ([STOPPING, {**GATHERING, "failures": [loss(1), loss(2)]}], 2),
    "two pods, one after the other": (
        [{**GATHERING, "failures": [loss(1)]}, {**GATHERING, "failures": [loss(1), loss(2)]}], 2
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pages", "events"), LOSSES.values(), ids=LOSSES)
def test_each_lost_pod_is_one_event(pages: list[dict[str, Any]], events: int) -> None:
    stored, child = started()
    after, seen = look(stored, child, 1), []
    for place, page in enumerate(pages, 2):
        after = look(job(after.status), child, place, **page)
        seen += [event.message for event in after.events if event.reason == "PodLost"]
    assert len(seen) == events, seen
