"""Reasons of pods that do not run or were lost, and of agents that will never start."""

from __future__ import annotations

from dataclasses import replace
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
    job,
    pod,
    pods,
    service,
    started,
    true_conditions,
)

Object = dict[str, Any]


def unscheduled(message: str) -> Object:
    false = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(1, phase="Pending", conditions=[false])


def waiting(reason: str, message: str = "") -> Object:
    return pod(1, phase="Pending", containerStatuses=[container(waiting={"reason": reason, "message": message})])


WAITING: dict[str, tuple[Object, str, str]] = {
    "no node has capacity": (
        unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        "Unschedulable", "Insufficient nvidia.com/gpu",
    ),
    "the claim does not exist": (
        unscheduled('persistentvolumeclaim "shared" not found'), "VolumeClaimNotFound", "Claim shared does not exist",
    ),
    "the image can't be pulled": (waiting("ImagePullBackOff", "not found"), "ImagePullFailed", "image trainer:cpu"),
    "a ConfigMap does not exist": (
        waiting("CreateContainerConfigError", 'configmap "c" not found'),
        "ContainerConfigError", 'configmap "c" not found',
    ),
    "the container is being created": (waiting("ContainerCreating"), "PodsPending", "digits-1 is starting"),
    "the init container's image can't be pulled": (
        pod(
            1, phase="Pending", initContainerStatuses=[container("dtj-agent", waiting={"reason": "ErrImagePull"})],
            containerStatuses=[container(waiting={"reason": "PodInitializing"})],
        ),
        "ImagePullFailed", "ErrImagePull",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WAITING)
def test_pending_job_reports_why_its_pods_do_not_run(case: str) -> None:
    stuck, reason, message = WAITING[case]
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), stuck, pod(2)))
    after = plan(stored, seen, NOW + 60, SETTINGS)
    running = condition(after.status, "Running")
    assert (running["status"], running["reason"]) == ("False", reason)
    assert message in running["message"]
    assert "digits-1" in running["message"]
    assert after.status["phase"] == "Pending"
    assert [event.reason for event in after.events] == ([] if reason == "PodsPending" else [reason])
    assert plan(job(after.status), seen, NOW + 61, SETTINGS).events == ()


def test_pod_that_waits_for_its_gang_is_not_the_cause() -> None:
    """Volcano reports `Schedulable` of a pod that has a node, while others of its gang have none."""
    message = "Pod team/digits-0 can possibly be assigned to node-3, once minAvailable is satisfied"
    fits = {"type": "PodScheduled", "status": "False", "reason": "Schedulable", "message": message}
    stored, child = started()
    pods = (pod(0, phase="Pending", conditions=[fits]), unscheduled("pod group is not ready"), pod(2))
    seen = Observed(stateful_set=child, service=service(), pods=pods)
    running = condition(plan(stored, seen, NOW + 60, SETTINGS).status, "Running")
    assert running["reason"] == "Unschedulable"
    assert running["message"].startswith("pod digits-1: pod group is not ready")


def test_missing_pods_point_to_the_statefulset() -> None:
    stored, child = started()
    status = plan(stored, Observed(stateful_set=child, service=service()), NOW + 60, SETTINGS).status
    assert "kubectl describe statefulset digits" in condition(status, "Running")["message"]


# As set by the node controller of 1.36 (MarkPodsNotReady), which gives no reason.
NOT_READY = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]


def lost(reason: str, message: str = "because") -> Object:
    gone = pod(1, deleted=True)
    gone["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    ]
    return gone


LOST: dict[str, tuple[Object | None, str]] = {
    "deleted": (pod(1, deleted=True), "PodDeleted"),
    "drained": (lost("EvictionByEvictionAPI"), "PodEvicted"),
    "preempted": (lost("PreemptionByScheduler"), "Preempted"),
    "its node is tainted": (lost("DeletionByTaintManager"), "NodeLost"),
    "evicted by the kubelet": (lost("TerminationByKubelet"), "PodEvicted"),
    "failed and evicted": (pod(1, phase="Failed", reason="Evicted", message="low on memory"), "PodEvicted"),
    "its node does not respond": (
        pod(1, phase="Running", containerStatuses=[container()], conditions=NOT_READY), "NodeLost",
    ),
    "killed for memory": (
        pod(1, phase="Running", containerStatuses=[container(terminated={"exitCode": 137, "reason": "OOMKilled"})]),
        "OOMKilled",
    ),
    "gone": (None, "PodLost"),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
def test_restarting_job_reports_why_a_pod_was_lost(case: str) -> None:
    gone, reason = LOST[case]
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    now = tuple(p for p in (pod(0), gone, pod(2)) if p)
    report = agent(phase="Rendezvous", phaseReason="PodLost", waitingFor=[1])
    seen = Observed(stateful_set=child, service=service(), pods=now, agent=report)
    after = plan(job(running.status), seen, NOW + 9, SETTINGS)
    assert condition(after.status, "Restarting")["status"] == "True"
    assert condition(after.status, "Restarting")["reason"] == reason
    assert condition(after.status, "Running")["status"] == "False"
    assert after.status["phase"] == "Restarting"
    assert [event.reason for event in after.events] == [reason]

    back = plan(
        job(after.status),
        Observed(stateful_set=child, service=service(), pods=pods(), agent=report),
        NOW + 12,
        SETTINGS,
    )
    expected = reason if reason != "PodLost" else "PodLost"
    assert condition(back.status, "Restarting")["reason"] == expected, "the reason outlives the pod that showed it"

    again = agent(attempt=2, restarts={"inPlace": 0, "pod": 1, "counted": 0})
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=again)
    runs = plan(job(back.status), seen, NOW + 15, SETTINGS)
    assert true_conditions(runs.status) == ["Running"]
    assert condition(runs.status, "Restarting")["status"] == "False"


def test_lost_pod_may_be_the_one_of_the_polled_agent() -> None:
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0, deleted=True), pod(1), pod(2)))
    after = plan(job(running.status), seen, NOW + 1, SETTINGS)
    assert condition(after.status, "Restarting")["reason"] == "PodDeleted"


@pytest.mark.parametrize(
    "conditions",
    [
        [
            {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"},
            {"type": "ContainersReady", "status": "True"},
        ],
        [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}],
        [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}],
    ],
    ids=["a readiness gate", "a container that is not ready", "all is well"],
)
def test_pod_with_a_reporting_kubelet_is_not_on_a_lost_node(conditions: Any) -> None:
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    gated = pod(0)
    gated["status"]["conditions"] = conditions
    seen = Observed(stateful_set=child, service=service(), pods=(gated, pod(1), pod(2)))
    assert true_conditions(plan(job(running.status), seen, NOW + 50, SETTINGS).status) == ["Running"]


def test_lost_node_may_be_the_one_of_the_polled_agent() -> None:
    """The pod still reads as running: only the node controller can report otherwise."""
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    cut_off = pod(0)
    cut_off["status"]["conditions"] = NOT_READY
    seen = Observed(stateful_set=child, service=service(), pods=(cut_off, pod(1), pod(2)))
    after = plan(job(running.status), seen, NOW + 50, SETTINGS)
    assert condition(after.status, "Restarting")["reason"] == "NodeLost"
    assert "w0" in condition(after.status, "Restarting")["message"]


def test_agent_that_is_silent_for_a_moment_changes_nothing() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    running = plan(stored, seen, NOW, SETTINGS)
    silent = Observed(stateful_set=child, service=service(), pods=pods())
    assert plan(job(running.status), silent, NOW + 40, SETTINGS).status == running.status


def test_failed_worker_is_reported_with_the_agents_reason() -> None:
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    failure = {
        "attempt": 1,
        "rank": 1,
        "ordinal": 1,
        "reason": "WorkerFailed",
        "message": "rank 1 was ended by SIGKILL",
    }
    report = agent(phase="Stopping", phaseReason="WorkerFailed", failures=[failure])
    after = plan(
        job(running.status), Observed(stateful_set=child, service=service(), pods=pods(), agent=report), NOW, SETTINGS
    )
    restarting = condition(after.status, "Restarting")
    assert (restarting["reason"], restarting["message"]) == ("WorkerFailed", "rank 1 was ended by SIGKILL")
    assert [(e.type, e.reason, e.message) for e in after.events] == [
        ("Warning", "WorkerFailed", "attempt 1: rank 1 was ended by SIGKILL")
    ]


def crashed(restarts: int, *, seconds: int = 1, reason: str = "Error", message: str = "", code: int = 1) -> Plan:
    end = {
        "exitCode": code, "reason": reason, "message": message,
        "startedAt": "2026-09-21T14:00:00Z", "finishedAt": f"2026-09-21T14:{seconds // 60:02}:{seconds % 60:02}Z",
    }  # fmt: skip
    stored, child = started()
    state = container(restarts=restarts, last=end, waiting={"reason": "CrashLoopBackOff"})
    found = tuple(pod(o, phase="Running", containerStatuses=[state]) for o in range(3))
    return plan(stored, Observed(stateful_set=child, service=service(), pods=found), NOW + 300, SETTINGS)


def test_agent_that_crashes_at_startup_fails_the_job_after_six_crashes() -> None:
    assert true_conditions(crashed(5).status) == []
    assert condition(crashed(5).status, "Running")["reason"] == "AgentCrashed"
    after = crashed(6, message="ModuleNotFoundError: no module named ssl")
    failed = condition(after.status, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "RestartBudgetSpent")
    assert "crashed 6 times during startup (exit code 1" in failed["message"]
    assert "ModuleNotFoundError" in failed["message"]
    assert after.status["restarts"] == {"total": 6, "inPlace": 6, "pod": 0, "counted": 6}
    (evidence,) = after.status["failures"]
    assert (evidence["pod"], evidence["exitCode"], evidence["reason"]) == ("digits-0", 1, "AgentCrashed")


def test_agent_killed_for_memory_is_reported_as_such() -> None:
    assert crashed(6, reason="OOMKilled", code=137).status["failures"][0]["reason"] == "OOMKilled"


def test_agent_that_ran_for_long_is_not_in_a_crash_loop() -> None:
    assert true_conditions(crashed(50, seconds=61).status) == []


def test_image_without_python_fails_the_job_at_once() -> None:
    detail = 'exec: "python3": executable file not found in $PATH'
    after = crashed(1, reason="StartError", message=detail, code=128)
    failed = condition(after.status, "Failed")
    assert failed["reason"] == "EntrypointNotFound"
    assert detail in failed["message"]
    assert "must have python3" in failed["message"]


def test_pods_of_an_earlier_run_are_ignored() -> None:
    stored, child = started()
    old = tuple(pod(o, owner="earlier-set", deleted=True) for o in range(3))
    after = plan(stored, Observed(stateful_set=child, service=service(), pods=old), NOW, SETTINGS)
    assert true_conditions(after.status) == []
    assert after.status["ready"] == "0/3"


def test_missing_members_are_in_the_condition_during_rendezvous() -> None:
    stored, child = started()
    report = agent(phase="Rendezvous", attempt=0, phaseMessage="waiting for digits-2 (never seen)")
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report)
    assert (
        condition(plan(stored, seen, NOW + 31, SETTINGS).status, "Running")["message"]
        == "waiting for digits-2 (never seen)"
    )


def test_missing_members_follow_the_loss_once_in_the_condition() -> None:
    stored, child = started()
    running = plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=agent()), NOW, SETTINGS)
    report = agent(phase="Rendezvous", phaseReason="PodLost", phaseMessage="waiting for digits-1 (left 2 s ago)")
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), pod(1, deleted=True), pod(2)), agent=report)
    first = plan(job(running.status), seen, NOW + 2, SETTINGS)
    restarting = condition(first.status, "Restarting")
    assert (restarting["reason"], restarting["message"]) == (
        "PodDeleted",
        "pod digits-1 was deleted; now waiting for digits-1 (left 2 s ago)",
    )
    report = report | {"phaseMessage": "waiting for digits-1 (left 40 s ago)"}
    later = plan(job(first.status), replace(seen, pods=pods(), agent=report), NOW + 40, SETTINGS)
    restarting = condition(later.status, "Restarting")
    assert (restarting["reason"], restarting["message"]) == (
        "PodDeleted",
        "pod digits-1 was deleted; now waiting for digits-1 (left 40 s ago)",
    )
    soon = plan(
        job(later.status),
        replace(seen, pods=pods(), agent=report | {"phaseMessage": "waiting for x"}),
        NOW + 42,
        SETTINGS,
    )
    assert soon.status == later.status, "the passing of time is no reason to write"
