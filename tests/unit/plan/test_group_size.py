"""Elastic jobs: the size of the StatefulSet, and what a job reports with fewer pods than its spec."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from dtj_contract.operator_message import GroupSize
from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed, Plan
from dtj_core.plan.operator_message import operator_message
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, applied, condition, job, pod, pods, service, started

Object = dict[str, Any]
ELASTIC: Object = {"elastic": {"minReplicas": 1, "maxReplicas": 6, "waitSeconds": 10}}
PENDING = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}


def members(*ordinals: int, state: str = "running") -> list[Object]:
    return [{"ordinal": n, "pod": f"digits-{n}", "address": f"10.0.0.{n}", "state": state} for n in ordinals]


def scaled(to: int, *, has: int = 3, status: Object | None = None, spares: int = 0) -> tuple[Object, Object]:
    """Returns a job that was started with `has` replicas and scaled since, and its StatefulSet."""
    stored, child = started(None, replicas=has, spares=spares, **ELASTIC)
    child["metadata"]["generation"] = 1
    known = status | {"observedGeneration": 2} if status else {}
    return job(stored["status"] | known, generation=2, replicas=to, spares=spares, **ELASTIC), child


def look(stored: Object, child: Object, group: tuple[Object, ...], page: Object | None, at: float = NOW) -> Plan:
    return plan(stored, Observed(stateful_set=child, service=service(), pods=group, agent=page), at, SETTINGS)


def size(wanted: Plan) -> int | None:
    """Returns the replicas of the StatefulSet that the plan applies; None if it applies none."""
    found = [a.body["spec"]["replicas"] for a in wanted.actions if isinstance(a, Apply) and a.body["kind"] != "Service"]
    return found[0] if found else None


def test_larger_size_takes_effect_at_once() -> None:
    stored, child = scaled(5)
    wanted = look(stored, child, pods(3), agent(members=members(0, 1, 2)))
    assert size(wanted) == 5
    assert "shrinkTime" not in wanted.status
    assert condition(wanted.status, "Running")["message"].startswith("attempt 1 is running 3 ranks on 3 of 5 pods")


LEAVING: dict[str, tuple[Object | None, float, bool]] = {
    "it still works": (agent(members=members(0, 1, 2)), 5, False),
    "it has left": (agent(attempt=2, replicas=2, members=[*members(0, 1), *members(2, state="idle")]), 5, True),
    "it stops": (agent(phase="Stopping", members=members(0, 1, 2, state="stopping")), 5, False),
    "the others wait": (agent(phase="Rendezvous", members=members(0, 1, 2, state="idle")), 5, True),
    "nobody answers": (None, 5, False),
    "another agent answers": (
        agent(ordinal=1, leader={"ordinal": 0, "pod": "digits-0", "epoch": 1}, members=members(1)), 5, False,
    ),
    "an agent answers that looks for its group": (
        agent(ordinal=1, phase="Rendezvous", leader=None, members=members(1, state="idle")), 5, False,
    ),
    "it still works after a minute": (agent(members=members(0, 1, 2)), 61, True),
    "nobody answers for a minute": (None, 61, True),
}  # fmt: skip


@pytest.mark.parametrize("case", LEAVING)
def test_pod_that_has_to_go_goes_once_it_does_not_work(case: str) -> None:
    page, after, goes = LEAVING[case]
    stored, child = scaled(2, status={"shrinkTime": rfc3339(NOW)})
    wanted = look(stored, child, pods(3), page, NOW + after)
    assert size(wanted) == (2 if goes else None)


def test_time_of_a_smaller_size_is_remembered_until_the_pods_are_gone() -> None:
    stored, child = scaled(2)
    busy = agent(members=members(0, 1, 2))
    first = look(stored, child, pods(3), busy, NOW)
    assert (first.status["shrinkTime"], size(first)) == (rfc3339(NOW), None)
    stored["status"] = first.status
    later = look(stored, child, pods(3), busy, NOW + 30)
    assert later.status["shrinkTime"] == rfc3339(NOW)
    child["spec"]["replicas"] = 2
    assert "shrinkTime" not in look(stored, child, pods(2), busy, NOW + 60).status


def test_pods_of_a_second_smaller_size_have_the_whole_time() -> None:
    stored, child = scaled(2, status={"shrinkTime": rfc3339(NOW)})
    stored["metadata"]["generation"], stored["spec"]["replicas"] = 3, 1
    busy = agent(members=members(0, 1, 2))
    second = look(stored, child, pods(3), busy, NOW + 61)
    assert (second.status["shrinkTime"], size(second)) == (rfc3339(NOW + 61), None)
    stored["status"] = second.status
    assert size(look(stored, child, pods(3), busy, NOW + 122)) == 1


SHRINKING = agent(attempt=1, phase="Rendezvous", phaseReason="GroupShrunk", members=members(0, 1, state="idle"))
SEARCHING = agent(ordinal=1, attempt=1, phase="Rendezvous", phaseReason="", leader=None, members=[])


def test_pod_that_was_scaled_away_is_no_lost_pod() -> None:
    stored, child = scaled(2)
    stored["status"] = look(stored, child, pods(3), agent(members=members(0, 1, 2))).status
    child["spec"]["replicas"] = 2
    group = (*pods(2), pod(2, deleted=True))
    resized = look(stored, child, group, SHRINKING, NOW + 1)
    found = [(event.type, event.reason) for event in resized.events]
    assert found == [("Normal", "GroupShrunk")]
    stored["status"] = resized.status
    for page in (SEARCHING, None):
        later = look(stored, child, group, page, NOW + 2)
        assert condition(later.status, "Restarting")["reason"] == "GroupShrunk"
        assert later.events == ()
    lost = look(stored, child, (pod(0), pod(1, deleted=True), group[2]), SEARCHING, NOW + 3)
    assert condition(lost.status, "Restarting")["reason"] == "PodDeleted"


def test_scaling_changes_no_pod_and_no_template() -> None:
    stored, child = scaled(5)
    (action,) = [a for a in look(stored, child, pods(3), agent()).actions if isinstance(a, Apply)]
    assert action.body["spec"]["template"] == child["spec"]["template"]
    child["spec"]["replicas"] = 5
    again = look(stored, {**child, "metadata": child["metadata"] | {"generation": 2}}, pods(5), agent())
    assert size(again) == 5, "an edit by somebody else is undone"
    undone = deepcopy(child)
    undone["metadata"] |= {"generation": 2, "annotations": action.body["metadata"]["annotations"]}
    assert look(stored, undone, pods(5), agent()).actions == ()


@pytest.mark.parametrize(("to", "adds"), [(2, False), (3, False), (5, True)])
def test_only_a_larger_set_needs_an_admitted_pod(to: int, adds: bool) -> None:
    stored, child = scaled(to, status={"shrinkTime": rfc3339(NOW - 100)})
    child["metadata"]["generation"] = 2  # an edit by somebody else
    (action,) = [a for a in look(stored, child, pods(3), None).actions if isinstance(a, Apply)]
    assert action.adds_pods is adds


def test_size_of_another_job_needs_new_pods() -> None:
    stored, child = started()
    wanted = plan(job(stored["status"], replicas=4), Observed(stateful_set=child, service=service()), NOW, SETTINGS)
    assert condition(wanted.status, "Running")["reason"] == "JobSuspended"


def test_agents_get_the_size_and_its_generation() -> None:
    stored, _ = scaled(5)
    assert operator_message(stored, (), NOW).size == GroupSize(2, 5)
    assert operator_message(job(), (), NOW).size is None


def test_limits_are_in_the_agents_environment() -> None:
    child = applied(elastic={"minReplicas": 2, "waitSeconds": 2.5, "learningRate": "Sqrt"})["StatefulSet"]
    env = {each["name"]: each.get("value") for each in child["spec"]["template"]["spec"]["containers"][0]["env"]}
    found = {name: env.get(name) for name in env if "ELASTIC" in name or ("_M" in name and "REPLICAS" in name)}
    assert found == {
        "DTJ_MIN_REPLICAS": "2",
        "DTJ_ELASTIC_WAIT_SECONDS": "2.5",
        "DTJ_ELASTIC_BATCH": "Global",
        "DTJ_ELASTIC_LEARNING_RATE": "Sqrt",
    }


def test_job_runs_with_fewer_pods_and_names_why() -> None:
    stored, child = scaled(3)
    waits = pod(2, phase="Pending", conditions=[PENDING])
    page = agent(attempt=2, replicas=2, members=members(0, 1))
    wanted = look(stored, child, (*pods(2), waits), page)
    running = condition(wanted.status, "Running")
    assert (running["status"], running["reason"]) == ("True", "WorkersRunning")
    assert running["message"] == "attempt 2 is running 2 ranks on 2 of 3 pods; pod digits-2: 0/3 nodes are available"
    counts = {name: wanted.status[name] for name in ("replicas", "readyReplicas", "ready", "selector")}
    assert counts == {
        "replicas": 2, "readyReplicas": 2, "ready": "2/3", "selector": "training.dtj.dev/job-name=digits",
    }  # fmt: skip


def test_startup_deadline_does_not_fail_a_group_that_may_begin_with_fewer() -> None:
    stored, child = started(None, startupDeadlineSeconds=60, **ELASTIC)
    child["metadata"]["creationTimestamp"] = rfc3339(NOW)
    group = [pod(0), pod(1, phase="Pending", conditions=[PENDING]), pod(2, phase="Pending", conditions=[PENDING])]
    for each in group:
        each["metadata"]["creationTimestamp"] = rfc3339(NOW)
    forming = agent(attempt=0, phase="Rendezvous", startTime=None)
    assert condition(look(stored, child, tuple(group), forming, NOW + 600).status, "Failed") == {}
    group[0] = {**group[1], "metadata": group[0]["metadata"]}
    late = look(stored, child, tuple(group), None, NOW + 600)
    assert condition(late.status, "Failed")["reason"] == "StartupDeadlineExceeded"


UNKNOWN_SIZE: dict[str, Object | None] = {
    "no answer": None,
    "an answer of a follower": agent(ordinal=1, leader={"ordinal": 0, "pod": "digits-0", "epoch": 1}, attempt=2),
    "an answer of an agent that searches": agent(ordinal=1, leader=None, attempt=1, phase="Rendezvous"),
}


@pytest.mark.parametrize("page", UNKNOWN_SIZE.values(), ids=UNKNOWN_SIZE)
def test_size_of_a_shrunk_group_stays_while_its_leader_does_not_answer(page: Object | None) -> None:
    stored, child = scaled(3)
    group = (*pods(2), pod(2, phase="Pending", conditions=[PENDING]))
    stored["status"] = look(stored, child, group, agent(attempt=2, replicas=2, members=members(0, 1))).status
    assert stored["status"]["replicas"] == 2
    assert look(stored, child, group, page, NOW + 60).status["replicas"] == 2
