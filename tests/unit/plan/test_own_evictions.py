"""A job of one pod that its kubelet evicts again and again ends by its budget, as one of several pods does."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed, Plan
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, condition, job, pod, service, started

Object = dict[str, Any]
TEXT = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."


def evicted(number: int, reason: str = "Evicted") -> Object:
    """Returns the pod as its kubelet reports it while it ends."""
    one = pod(0, phase="Running", reason=reason, message=TEXT)
    one["metadata"]["uid"] = f"pod-{number}"
    one["spec"] = {**one.get("spec", {}), "nodeName": "w1"}
    by_kubelet = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    one["status"]["conditions"] = [by_kubelet]
    return one


class Evicted:
    """A job with this spec, whose pods are evicted one after the other."""

    def __init__(self, replicas: int = 1, max_restarts: int = 2, **restart: Any) -> None:
        self.spec = {"replicas": replicas, "restart": {"maxRestarts": max_restarts, **restart}}
        first, self.child = started(**self.spec)
        self.status = first["status"]
        self.time = NOW
        self.number = 0

    def look(self, *pods: Object) -> Plan:
        seen = Observed(stateful_set=self.child, service=service(), pods=pods)
        after = plan(job(self.status, **self.spec), seen, self.time, SETTINGS)
        self.status = after.status
        return after

    def evict(self, times: int = 1, after: float = 60.0, reason: str = "Evicted") -> Plan:
        for _ in range(times):
            self.time += after
            self.number += 1
            self.look(evicted(self.number, reason))
            last = self.look(evicted(self.number, reason))  # the same pod is still there
        return last

    @property
    def failed(self) -> Object:
        return condition(self.status, "Failed") if any(c["type"] == "Failed" for c in self.status["conditions"]) else {}


def test_evictions_of_the_only_pod_end_the_job_by_its_budget() -> None:
    one = Evicted()
    one.evict(5)
    assert not one.failed, "3 are free, 2 are the budget"
    assert one.status["ownEvictions"]["count"] == 2
    one.evict()
    assert one.failed["reason"] == "RestartBudgetSpent"
    assert TEXT in one.failed["message"]
    assert "3 times within 3600 s, and maxRestarts is 2" in one.failed["message"]
    failure = one.status["failures"][-1]
    assert (failure["reason"], failure["pod"], failure["node"]) == ("PodEvicted", "digits-0", "w1")


def test_evictions_without_progress_end_the_job_by_the_smaller_limit() -> None:
    one = Evicted(max_restarts=10, maxRestartsWithoutProgress=1)
    one.evict(5)
    assert one.failed["reason"] == "NoProgress"
    assert "maxRestartsWithoutProgress is 1" in one.failed["message"]


PROGRESS: dict[str, Object] = {
    "a checkpoint": {"checkpoint": {"step": 10, "time": rfc3339(NOW + 301)}},
    "a step that no attempt had done": {"progress": {"step": 11, "stepSource": "Script"}},
}
NO_PROGRESS: dict[str, Object] = {
    "fewer steps than before": {"progress": {"step": 9, "stepSource": "Script"}},
    "an older checkpoint": {"checkpoint": {"step": 10, "time": rfc3339(NOW + 10)}},
    "counted steps": {"progress": {"step": 11, "stepSource": "Optimizer"}},
}


@pytest.mark.parametrize("made", PROGRESS.values(), ids=PROGRESS)
def test_progress_forgives_evictions(made: Object) -> None:
    one = Evicted()
    one.evict(5)
    one.status |= made
    one.evict()
    assert len(one.status["ownEvictions"]["times"]) == 1
    assert not one.failed


@pytest.mark.parametrize("made", NO_PROGRESS.values(), ids=NO_PROGRESS)
def test_what_is_no_progress_forgives_nothing(made: Object) -> None:
    one = Evicted()
    one.status |= {"progress": {"step": 10, "stepSource": "Script"}}
    one.evict()
    one.status |= {"progress": {"step": 3, "stepSource": "Script"}}
    one.evict(4)
    one.status |= made
    one.evict()
    assert one.failed


def test_evictions_that_are_far_apart_end_no_job() -> None:
    one = Evicted(windowSeconds=100)
    one.evict(20, after=101)
    assert not one.failed


def test_only_evictions_within_the_window_take_from_the_budget() -> None:
    one = Evicted(windowSeconds=100)
    one.evict(20, after=34)
    assert not one.failed, "3 within each window are free"
    assert (one.status["ownEvictions"]["count"], one.status["ownEvictions"]["spent"]) == (0, [])
    one.evict(2, after=1)
    one.evict(after=101)
    assert not one.failed
    one.evict(6, after=1)
    assert one.failed["reason"] == "RestartBudgetSpent", "3 are free, 2 are the budget"


def test_unseen_progress_of_a_long_life_spends_only_the_budget() -> None:
    one = Evicted(max_restarts=5, maxRestartsWithoutProgress=1)
    for number in range(8):
        last = evicted(number)
        last["status"]["startTime"] = rfc3339(one.time)
        one.time += 400
        one.look(last)
    assert not one.failed
    assert (one.status["ownEvictions"]["count"], len(one.status["ownEvictions"]["spent"])) == (0, 5)


def test_shutdown_of_the_node_costs_nothing() -> None:
    one = Evicted(max_restarts=0)
    one.evict(20, reason="Terminated")
    assert "ownEvictions" not in one.status
    assert not one.failed


def test_coordinator_counts_the_evictions_of_several_pods() -> None:
    one = Evicted(replicas=2, max_restarts=0)
    one.evict(20)
    assert "ownEvictions" not in one.status


def test_lower_budget_fails_no_job_whose_last_eviction_is_over() -> None:
    one = Evicted(max_restarts=5)
    one.evict(5)
    one.status |= PROGRESS["a checkpoint"]
    one.spec["restart"]["maxRestarts"] = 1
    one.time += 5 * 86400
    one.look(pod(0))
    assert not one.failed
    one.look()
    assert not one.failed, "the pod is being replaced"


def test_raised_budget_holds_at_once_and_a_suspension_forgives() -> None:
    one = Evicted(max_restarts=0)
    one.evict(3)
    one.spec["restart"]["maxRestarts"] = 1
    one.evict()
    assert not one.failed
    one.spec["suspend"] = True
    one.look()
    gone = plan(job(one.status, **one.spec), Observed(), one.time + 1, SETTINGS)
    assert condition(gone.status, "Suspended")["status"] == "True"
    assert "ownEvictions" not in gone.status


# --- the pause before the pod is created again ------------------------------------------------------------------------


def sizes(after: Plan) -> list[int]:
    """Returns the sizes that the StatefulSet is given."""
    bodies = (action.body for action in after.actions if isinstance(action, Apply))
    return [body["spec"]["replicas"] for body in bodies if body["kind"] == "StatefulSet"]


def scale(one: Evicted, replicas: int) -> None:
    one.child = {**one.child, "spec": {**one.child["spec"], "replicas": replicas}}


def test_only_pod_is_recreated_at_once_after_its_first_eviction() -> None:
    one = Evicted()
    assert sizes(one.evict()) == []
    assert sizes(one.look()) == []


@pytest.mark.parametrize(("evictions", "seconds"), [(2, 10), (3, 20), (4, 40), (5, 80), (20, 300)])
def test_pause_after_an_eviction_doubles_up_to_its_bound(evictions: int, seconds: int) -> None:
    one = Evicted(max_restarts=100, maxRestartsWithoutProgress=100)
    held = one.evict(evictions, after=1.0)
    assert sizes(held) == [0], "the eviction is stored"
    scale(one, 0)
    one.time += seconds - 1
    waits = one.look()
    assert (sizes(waits), waits.actions, waits.requeue_after) == ([], (), 1)
    one.time += 1
    assert sizes(one.look()) == [1]


def test_pause_begins_only_once_its_eviction_is_stored() -> None:
    one = Evicted()
    one.evict()
    one.time += 60
    seen = one.look(evicted(2))
    assert (sizes(seen), seen.requeue_after) == ([], 0.2)
    assert sizes(one.look(evicted(2))) == [0]


def test_pause_is_shown_with_its_end_and_what_to_do() -> None:
    one = Evicted()
    one.evict(2)
    scale(one, 0)
    one.look()
    shown = condition(one.status, "Running")
    assert (shown["status"], shown["reason"]) == ("False", "PodEvicted")
    assert f"creating it again at {rfc3339(one.time + 10)}" in shown["message"]
    assert "Raise the requests and limits" in shown["message"]


def test_pause_leaves_a_pod_alone_that_runs_already() -> None:
    one = Evicted()
    one.evict(2)
    assert sizes(one.look(pod(0))) == []


def test_evictions_of_pods_that_lived_for_long_pause_no_longer_than_the_free_ones() -> None:
    one = Evicted(max_restarts=100)
    for number in range(8):
        last = evicted(number)
        last["status"]["startTime"] = rfc3339(one.time)
        one.time += 400
        one.look(last)
    scale(one, 0)
    one.time += 20
    assert sizes(one.look()) == [1]


def test_progress_ends_the_pauses() -> None:
    one = Evicted()
    one.evict(5)
    one.status |= {"checkpoint": {"step": 10, "time": rfc3339(one.time + 30)}}
    assert sizes(one.evict()) == []
