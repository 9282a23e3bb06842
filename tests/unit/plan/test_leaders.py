"""Reports of agents that may not coordinate: what the status takes from which page."""

from __future__ import annotations

from typing import Any

from dtj_core.plan import plan
from dtj_core.plan.agent_report import report_from_status
from dtj_core.plan.model import Observed, Plan
from tests.unit.plan.objects import NOW, SETTINGS, UID, agent, condition, job, pods, service, started

Object = dict[str, Any]
LEADER: Object = {"ordinal": 2, "pod": "digits-2", "address": "10.0.0.2", "epoch": 1}
RESTARTS: Object = {"inPlace": 3, "pod": 0, "counted": 3}


def look(page: Object | None, status: Object | None = None, after: float = 60) -> Plan:
    stored, child = started(status)
    return plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=page), NOW + after, SETTINGS)


def running() -> Object:
    return look(agent(ordinal=2, leader=LEADER, attempt=4, progress={"step": 70, "time": NOW})).status


def test_leader_is_remembered_in_the_status_as_a_hint() -> None:
    status = running()
    assert status["coordinator"] == "digits-2"
    moved = look(agent(ordinal=1, leader=LEADER | {"ordinal": 1, "pod": "digits-1"}, attempt=5), status)
    assert moved.status["coordinator"] == "digits-1"
    assert look(None, status).status["coordinator"] == "digits-2"
    assert "coordinator" not in look(agent()).status, "an older agent"


def test_page_of_a_follower_brings_counters_and_no_phase() -> None:
    status = running()
    page = agent(
        ordinal=0, leader=LEADER, attempt=4, phase="Rendezvous", restarts=RESTARTS, progress={"step": 60, "time": NOW}
    )
    wanted = look(page, status).status
    assert condition(wanted, "Running")["status"] == "True"
    assert (wanted["restarts"]["total"], wanted["progress"]["step"]) == (3, 70)


def test_agent_that_has_just_started_decides_no_phase() -> None:
    status = running()
    lost = agent(ordinal=0, leader=None, attempt=0, phase="Rendezvous", startTime=None)
    assert condition(look(lost, status).status, "Running")["status"] == "True"
    without = agent(ordinal=0, leader=None, attempt=4, phase="Rendezvous", phaseReason="PodLost")
    assert condition(look(without, status).status, "Running")["status"] == "False", "nobody coordinates"


def test_leader_of_an_ill_formed_name_is_dropped() -> None:
    for pod in ("Digits-0", "a/b", "x" * 64, 7, None):
        report = report_from_status(agent(leader=LEADER | {"pod": pod}), UID)
        assert report is not None
        assert report.leader == ""


def test_hint_does_not_outlive_the_pods() -> None:
    status = running()
    stopped = plan(job(status, suspend=True), Observed(), NOW, SETTINGS)
    assert "coordinator" not in stopped.status
