"""The message that the operator hands to the agents: the budget as stored, and why pods were lost."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_contract.operator_message import LostPod, RestartBudget
from dtj_core.plan import plan
from dtj_core.plan.model import Observed
from dtj_core.plan.operator_message import operator_message
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, container, job, pod, pods, service, started


def lost(**changes: Any) -> LostPod | None:
    """Returns what the agents get about a pod with these changes."""
    one = pod(1)
    one["metadata"] |= changes.pop("metadata", {})
    one["status"] |= {"podIP": "10.0.0.1", **changes}
    found = operator_message(job(), [one], NOW).lost_pods
    return found[0] if found else None


def disrupted(why: str, **status: Any) -> LostPod | None:
    return lost(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": why}], **status)


NAME, ADDRESS = "digits-1", "10.0.0.1"


@pytest.mark.parametrize(
    ("found", "reason", "own"),
    [
        (lost(), None, False),
        (lost(metadata={"deletionTimestamp": "2026-09-21T14:13:20Z"}), "PodDeleted", False),
        (disrupted("PreemptionByScheduler"), "Preempted", False),
        (disrupted("EvictionByEvictionAPI"), "PodEvicted", False),
        (disrupted("DeletionByTaintManager"), "NodeLost", False),
        (disrupted("TerminationByKubelet", phase="Failed", reason="Terminated"), "PodEvicted", False),
        (disrupted("TerminationByKubelet", phase="Failed", reason="Evicted"), "PodEvicted", True),
        (lost(phase="Failed", reason="Evicted"), "PodEvicted", True),
    ],
    ids=[
        "a pod that stays",
        "kubectl delete pod",
        "preemption",
        "kubectl drain",
        "a dead node",
        "shutdown of a node",
        "an eviction for disk or memory",
        "the same by an old kubelet",
    ],
)
def test_lost_pod_has_the_reason_of_its_end(found: LostPod | None, reason: str | None, own: bool) -> None:
    assert found == (None if reason is None else LostPod(NAME, ADDRESS, reason, own))


OOM = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": rfc3339(NOW - 10)}


def ended_container(**changes: Any) -> list[Any]:
    return [container(restarts=1, last=OOM | changes)]


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        (ended_container(), True),
        (ended_container(reason="Error"), False),
        (ended_container(finishedAt=rfc3339(NOW - 3600)), False),
        ([container(restarts=1, last=OOM) | {"name": "sidecar"}], False),
        ([container(terminated=OOM)], True),
    ],
    ids=["running again", "a crash", "an hour ago", "another container", "in the kubelet's back-off"],
)
def test_container_killed_for_memory_is_handed_over_for_a_while(statuses: list[Any], found: bool) -> None:
    expected = LostPod(NAME, ADDRESS, "OOMKilled", False, NOW - 10) if found else None
    assert lost(containerStatuses=statuses) == expected


@pytest.mark.parametrize(
    ("restart", "budget"),
    [
        ({}, RestartBudget(1, 10, 3600.0, 20)),
        ({"maxRestarts": 0, "windowSeconds": 5, "maxRestartsWithoutProgress": 2}, RestartBudget(1, 0, 5.0, 2)),
        ({"maxRestarts": 3, "newIn2030": {"x": 1}}, RestartBudget(1, 3, 3600.0, 20)),
        ({"maxRestarts": "many"}, None),
    ],
    ids=["the defaults", "all three", "a field of a newer CRD", "what a newer CRD may allow"],
)
def test_budget_is_that_of_the_stored_spec(restart: dict[str, Any], budget: RestartBudget | None) -> None:
    assert operator_message(job(restart=restart), [], NOW).budget == budget


@pytest.mark.parametrize("keep", [5, None, 0, True, "7"])
def test_number_of_kept_checkpoints_is_handed_over(keep: Any) -> None:
    stored = job(checkpoint={"volume": {"claimName": "shared"}, "keep": keep})
    budget = operator_message(stored, [], NOW).budget
    assert budget is not None
    assert budget.checkpoint_keep == (5 if keep == 5 else None)


def test_changed_number_of_kept_checkpoints_recreates_no_pod() -> None:
    first, other = ({"volume": {"claimName": "shared"}, "keep": keep} for keep in (3, 9))
    stored, child = started(checkpoint=first)
    seen = Observed(stateful_set=child, service=service(), pods=pods())
    assert plan(job(stored["status"], generation=2, checkpoint=other), seen, NOW, SETTINGS).actions == ()


def test_changed_budget_recreates_no_pod() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods())
    restart = {"maxRestarts": 99, "windowSeconds": 5, "maxRestartsWithoutProgress": 2}
    assert plan(job(stored["status"], generation=2, restart=restart), seen, NOW, SETTINGS).actions == ()
