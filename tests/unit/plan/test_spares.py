"""Spares: pods beyond replicas, which the job never waits for."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed, Plan
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    agent,
    applied,
    condition,
    container,
    job,
    pod,
    pods,
    service,
    started,
    template,
)  # fmt: skip

Object = dict[str, Any]
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}


def pending(ordinal: int) -> Object:
    found = pod(ordinal, phase="Pending", conditions=[UNSCHEDULED])
    found["metadata"]["creationTimestamp"] = rfc3339(NOW)
    return found


def look(*group: Object, page: Object | None = None, status: Object | None = None, **spec: Any) -> Plan:
    stored, child = started(status, spares=1, **spec)
    child["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=group, agent=page)
    return plan(stored, seen, NOW + 600, SETTINGS)


def environment(child: Object) -> Object:
    return {each["name"]: each.get("value") for each in child["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_stateful_set_has_the_spares_and_the_agents_learn_their_number() -> None:
    child = applied(spares=2)["StatefulSet"]
    assert child["spec"]["replicas"] == 5
    assert (environment(child)["DTJ_REPLICAS"], environment(child)["DTJ_SPARES"]) == ("3", "2")
    assert "DTJ_SPARES" not in environment(applied()["StatefulSet"])


@pytest.mark.parametrize(
    ("spec", "spreads"),
    [
        ({"spares": 1}, True),
        ({}, False),
        ({"spares": 1, **template({"topologySpreadConstraints": [{"topologyKey": "zone"}]})}, False),
        ({"spares": 1, **template({"affinity": {"podAntiAffinity": {"x": []}}})}, False),
        ({"spares": 1, **template({"affinity": {"nodeAffinity": {"x": []}}})}, True),
    ],
)
def test_pods_with_spares_are_spread_unless_the_user_has_placed_them(spec: Object, spreads: bool) -> None:
    given = applied(**spec)["StatefulSet"]["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
    ours = [each for each in given if each["topologyKey"] == "kubernetes.io/hostname"]
    assert [each["whenUnsatisfiable"] for each in ours] == (["ScheduleAnyway"] if spreads else [])
    if spreads:
        selector = applied(**spec)["StatefulSet"]["spec"]["selector"]
        assert ours[0]["labelSelector"] == selector


def test_ready_spares_are_counted_apart() -> None:
    wanted = look(*pods(4), page=agent())
    assert (wanted.status["ready"], wanted.status["replicas"], wanted.status["spares"]) == ("3/3", 3, 1)
    running = condition(wanted.status, "Running")
    assert running["message"] == "attempt 1 is running 3 ranks on 3 pods; 1 of 1 spare ready"


def test_lost_spare_is_written_at_once() -> None:
    stored = look(*pods(4), page=agent()).status
    assert look(*pods(3), page=agent(), status=stored).status["spares"] == 0


def test_pending_spare_blocks_nothing() -> None:
    wanted = look(*pods(3), pending(3), page=agent(), startupDeadlineSeconds=60)
    running = condition(wanted.status, "Running")
    assert (running["status"], running["reason"]) == ("True", "WorkersRunning")
    assert running["message"] == "attempt 1 is running 3 ranks on 3 pods; 0 of 1 spare ready"
    assert wanted.status["spares"] == 0


def test_group_that_forms_does_not_wait_for_its_spare() -> None:
    forming = agent(attempt=0, phase="Rendezvous", startTime=None, phaseMessage="waiting for digits-1 (never seen)")
    running = condition(look(*pods(3), pending(3), page=forming).status, "Running")
    assert (running["reason"], running["message"]) == ("Rendezvous", "waiting for digits-1 (never seen)")


def test_any_pod_may_be_the_one_that_does_not_run() -> None:
    swapped = (pod(0), pending(1), pod(2), pod(3))
    forming = agent(attempt=0, phase="Rendezvous", startTime=None)
    assert condition(look(*swapped, page=forming).status, "Running")["reason"] == "Rendezvous"


@pytest.mark.parametrize(("missing", "fails"), [((3,), False), ((2, 3), True)])
def test_startup_deadline_needs_proof_that_too_few_pods_have_run(missing: tuple[int, ...], fails: bool) -> None:
    def made(ordinal: int) -> Object:
        found = pod(ordinal)
        found["metadata"]["creationTimestamp"] = rfc3339(NOW)
        return found

    group = [pending(n) if n in missing else made(n) for n in range(4)]
    wanted = look(*group, startupDeadlineSeconds=60)
    assert condition(wanted.status, "Failed").get("reason") == ("StartupDeadlineExceeded" if fails else None)


def test_loss_of_a_pod_is_no_restart_while_nobody_answers_and_a_spare_runs() -> None:
    stored = look(*pods(4), page=agent()).status
    lost = look(pod(0), pod(1, deleted=True), pod(2), pod(3), status=stored)
    assert condition(lost.status, "Restarting") == condition(stored, "Restarting")
    assert condition(lost.status, "Running")["status"] == "True"
    both = look(pod(0), pod(1, deleted=True), pod(2), status=stored)
    assert condition(both.status, "Restarting")["status"] == "True"


def test_swap_is_an_event_and_no_restart() -> None:
    used = {"type": "Normal", "reason": "SpareUsed", "message": "digits-3 takes the ranks of digits-1", "time": NOW}
    stored = look(*pods(4), page=agent()).status
    wanted = look(*pods(4), page=agent(attempt=2, events=[used]), status=stored)
    assert condition(wanted.status, "Running")["status"] == "True"
    assert ("Normal", "SpareUsed") in [(event.type, event.reason) for event in wanted.events]
    assert condition(wanted.status, "Restarting").get("status") != "True"


def test_spare_over_quota_does_not_stop_a_start() -> None:
    stored, child = started(spares=1)
    forming = agent(attempt=0, phase="Rendezvous", startTime=None, phaseMessage="")
    seen = Observed(stateful_set=child, service=service(), pods=pods(3), agent=forming, refusal="exceeded quota")
    assert condition(plan(stored, seen, NOW + 600, SETTINGS).status, "Running")["reason"] == "Rendezvous"


def test_crashed_container_of_a_spare_is_not_a_wait() -> None:
    crashing = pod(3, phase="Running", containerStatuses=[container(waiting={"reason": "CrashLoopBackOff"})])
    running = condition(look(*pods(3), crashing, page=agent()).status, "Running")
    assert running["status"] == "True"


def test_spare_that_never_starts_fails_no_job_whose_agents_miss_a_poll() -> None:
    ended = {"exitCode": 1, "reason": "Error", "startedAt": rfc3339(NOW), "finishedAt": rfc3339(NOW + 1)}
    crashed = container(restarts=9, last=ended, waiting={"reason": "CrashLoopBackOff"})
    stored = look(*pods(4), page=agent()).status
    spare = pod(3, phase="Running", containerStatuses=[crashed])
    assert condition(look(*pods(3), spare, status=stored).status, "Failed") == {}
    needed = look(*pods(2), spare, status=stored).status
    assert condition(needed, "Failed") == {}, "it has run, and its budget is not spent"
    assert condition(look(*pods(2), spare).status, "Failed")["reason"] == "RestartBudgetSpent"


def test_number_of_spares_can_change_only_with_the_pods() -> None:
    stored, child = started(spares=1)
    more = job(stored["status"], spares=2)
    wanted = plan(more, Observed(stateful_set=child, service=service(), pods=pods(4)), NOW, SETTINGS)
    assert condition(wanted.status, "Running")["reason"] == "JobSuspended"
