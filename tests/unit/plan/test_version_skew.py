"""An upgrade or a rollback of operator or CRD fails and restarts no running job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dtj_core import api
from dtj_core.api.checkpoint import Checkpoint
from dtj_core.api.restart import RestartSettings
from dtj_core.api.v1alpha1 import Spec
from dtj_core.plan import children, plan, shape
from dtj_core.plan.job import Job
from dtj_core.plan.model import Delete, Object, Observed
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    World,
    agent,
    condition,
    container,
    ended,
    job,
    outcome,
    pod,
    pods,
    service,
    started,
    true_conditions,
)

NEWER: dict[str, Object] = {
    "a bound that was wider": {"replicas": 2000},
    "a value that was added": {"backend": "mpi"},
    "a nested bound": {"restart": {"maxRestarts": 5000}},
    "another type": {"entrypoint": "train.py"},
    "a rule that was dropped": {"entrypoint": {"module": "train", "script": "/train.py"}},
    "a template that was allowed": {"template": {"spec": {"volumes": [{"name": "dtj-state", "emptyDir": {}}]}}},
    "nearly everything is unreadable": {"replicas": "many", "suspend": "no", "template": 7, "checkpoint": []},
}


def running() -> tuple[Object, Observed]:
    """Returns the status of a running job, as written by an operator that can read its spec."""
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    return plan(stored, seen, NOW, SETTINGS).status, seen


@pytest.mark.parametrize("case", NEWER)
def test_running_job_with_an_unreadable_spec_continues_and_is_stalled(case: str) -> None:
    status, seen = running()
    wanted = plan(job(status, **NEWER[case]), seen, NOW + 5, SETTINGS)
    assert wanted.actions == ()
    assert true_conditions(wanted.status) == ["Running", "Stalled"]
    assert wanted.status["phase"] == "Running"
    stalled = condition(wanted.status, "Stalled")
    assert stalled["reason"] == "InvalidSpec"
    assert "install the operator that matches the CRD" in stalled["message"]
    assert [event.reason for event in wanted.events] == ["InvalidSpec"]
    again = plan(job(wanted.status, **NEWER[case]), seen, NOW + 6, SETTINGS)
    assert (again.actions, again.events, again.status) == ((), (), wanted.status)
    assert again.requeue_after == 2, "its agent is still polled"


@pytest.mark.parametrize("case", NEWER)
def test_version_that_reads_the_spec_again_continues_the_job(case: str) -> None:
    status, seen = running()
    stalled = plan(job(status, **NEWER[case]), seen, NOW + 5, SETTINGS).status
    back = plan(job(stalled), seen, NOW + 9, SETTINGS)
    assert (back.actions, back.events) == ((), ())
    assert back.status["conditions"] == status["conditions"]


@pytest.mark.parametrize("result", ["Succeeded", "Failed"])
def test_outcome_of_an_unreadable_job_finishes_it(result: str) -> None:
    status, seen = running()
    finished = pod(0, phase="Running", containerStatuses=[container(restarts=1, last=ended(outcome(result), 1))])
    seen = Observed(stateful_set=seen.stateful_set, service=seen.service, pods=(finished,))
    end = plan(job(status, backend="mpi"), seen, NOW + 5, SETTINGS)
    assert true_conditions(end.status) == ["Complete" if result == "Succeeded" else "Failed"]
    assert condition(end.status, "Stalled") == {}


def test_outcome_is_found_in_a_container_of_another_name() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "i"}], "volumes": [{"name": "dtj-tmp"}]}}
    finished = pod(0, phase="Running", containerStatuses=[container("main", restarts=1, last=ended(outcome(), 0))])
    status, seen = running()
    seen = Observed(stateful_set=seen.stateful_set, service=seen.service, pods=(finished,))
    end = plan(job(status, image=None, template=template), seen, NOW + 5, SETTINGS)
    assert true_conditions(end.status) == ["Complete"]


def test_unreadable_job_follows_its_deadline_and_suspension() -> None:
    status, seen = running()
    late = plan(job(status, backend="mpi", activeDeadlineSeconds=10), seen, NOW + 11, SETTINGS)
    assert condition(late.status, "Failed")["reason"] == "DeadlineExceeded"
    world = World(job(status, backend="mpi", suspend=True))
    world.observed = seen
    world.reconcile(NOW + 5)
    wanted = world.reconcile(NOW + 6)
    assert wanted is not None
    assert [action.kind for action in wanted.actions if isinstance(action, Delete)] == ["StatefulSet"]
    world.see(pods=())
    world.settle(NOW + 9)
    assert true_conditions(world.status) == ["Suspended", "Stalled"]
    assert world.job is not None
    world.job["spec"]["suspend"] = False
    world.settle(NOW + 10)
    assert (world.runs, world.status["phase"], world.status["reason"]) == (0, "Pending", "InvalidSpec")
    world.job["spec"]["backend"] = "gloo"
    world.settle(NOW + 11)
    assert (world.runs, true_conditions(world.status)) == (1, [])


def test_agent_crash_fails_no_job_with_an_unreadable_budget() -> None:
    status, seen = running()
    crashed = container(restarts=99, last=ended("", 1), waiting={"reason": "CrashLoopBackOff"})
    seen = Observed(stateful_set=seen.stateful_set, service=seen.service, pods=(pod(0, containerStatuses=[crashed]),))
    wanted = plan(job(status, restart={"maxRestarts": 5000}), seen, NOW + 5, SETTINGS)
    assert "Failed" not in true_conditions(wanted.status)


@pytest.mark.parametrize(
    "status", [None, {"conditions": [{"type": "Suspended", "status": "True"}]}], ids=["new", "queued"]
)
def test_unreadable_job_that_has_not_run_waits_for_its_operator(status: Any) -> None:
    world = World(job(status, backend="mpi"))
    world.settle(NOW)
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "InvalidSpec")
    assert world.runs == 0
    assert world.job is not None
    world.job["spec"]["backend"] = "gloo"
    world.settle(NOW + 100)
    assert world.runs == 1
    assert condition(world.status, "Stalled") == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["spec", "containers", "name"]), inner, max_size=2)
    ),
    max_leaves=8,
)
SHAPING = ("replicas", "processesPerPod", "backend", "entrypoint", "image", "template", "checkpoint", "restart")


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(SHAPING), json_values, max_size=4))
@example({"template": {"spec": {"containers": ["x"]}}})
@example({"template": {"spec": {"containers": [None]}}})
def test_garbage_in_the_spec_of_a_running_job_keeps_pods_and_outcome(spec: Object) -> None:
    status, seen = running()
    body = job(status)
    body["spec"] = spec
    wanted = plan(body, seen, NOW + 5, SETTINGS)
    try:
        api.read(body)
    except api.InvalidJob:
        assert wanted.actions == ()
        assert true_conditions(wanted.status)[0] == "Running"
        assert job_of(body).trainer_container
    else:
        return
    report = agent(outcome=outcome())
    end = plan(body, replace(seen, agent=report), NOW + 6, SETTINGS)
    assert true_conditions(end.status) == ["Complete"]


def job_of(body: Object) -> Job:
    return Job.salvage(body, "")


# --- the shape -------------------------------------------------------------------------------------------------------
LIVE = {
    "suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "startupDeadlineSeconds", "cleanPodPolicy",
    "forceDeletePods", "managedBy", "halfPlacedSeconds",
}  # fmt: skip
LIVE_NESTED = {"maxRestarts", "windowSeconds", "maxRestartsWithoutProgress", "avoidNodes", "keep"}
FROZEN = (
    "replicas=default,processesPerPod=default,backend=default,entrypoint.script=default,"
    "entrypoint.module=80d5b9c7c81e,entrypoint.args=default,image=4d527f39861b,template=default,"
    "checkpoint.volume.claimName=default,checkpoint.volume.hostPath.path=default,"
    "checkpoint.volume.hostPath.type=default,checkpoint.volume.source=default,checkpoint.mountPath=default,"
    "checkpoint.everySteps=default,restart.stopGraceSeconds=default"
)


def test_spec_shape_equals_that_of_all_earlier_versions() -> None:
    """The table may gain entries at its end, and lose those that shape pods no more.

    A changed entry restarts every running job at the upgrade.
    """
    assert shape.spec_shape({"image": "trainer:cpu", "entrypoint": {"module": "train"}}).startswith(FROZEN)


def test_every_immutable_field_of_the_spec_is_in_the_shape_table() -> None:
    known = {path.partition(".")[0] for path in shape.FIELDS}
    # A shape is computed from the fields of the job and of its runtime together.
    assert known == {info.alias for info in Spec.model_fields.values()} - LIVE - {"runtimeRef"}
    for name, model in (("checkpoint", Checkpoint), ("restart", RestartSettings)):
        nested = {path.split(".")[1] for path in shape.FIELDS if path.startswith(name)}
        assert nested == {info.alias for info in model.model_fields.values()} - LIVE_NESTED


@pytest.mark.parametrize("field", ["maxRestarts", "windowSeconds"])
def test_changed_default_restarts_nothing(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, child = started()  # without spec.restart
    read = read_with_defaults(**{field: 7})
    monkeypatch.setattr("dtj_core.plan.job._read", lambda text: read(json.loads(text)).spec)
    assert Job.from_object(stored).spec.restart.model_dump(by_alias=True)[field] == 7
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert plan(stored, seen, NOW, SETTINGS).actions == ()


def read_with_defaults(**restart: int) -> Any:
    """Returns `api.read` of a version with these defaults."""
    read = api.read

    def other(obj: Object) -> Any:
        return read({**obj, "spec": {"restart": restart} | obj["spec"]})

    return other


@pytest.mark.parametrize(
    "spec",
    [
        {"restart": {"maxRestarts": 10, "windowSeconds": 3600}},
        {"restart": {"maxRestarts": 10, "windowSeconds": 3600, "backoffSeconds": 5}},
        {"communication": {"algorithm": "ring"}},
        {"template": None, "checkpoint": None},
        {"backend": "auto", "suspend": False, "cleanPodPolicy": "None"},
    ],
    ids=[
        "defaults that were filled in",
        "a default of a newer CRD",
        "a field of a newer CRD",
        "nulls",
        "what does not shape pods",
    ],
)
def test_defaults_filled_in_by_another_crd_restart_nothing(spec: Object) -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert plan(job(stored["status"], **spec), seen, NOW, SETTINGS).actions == ()


def test_shapes_are_compared_in_fields_that_both_versions_know() -> None:
    mine = shape.spec_shape(job()["spec"])
    assert not shape.shapes_differ(mine, mine + ",communication.algorithm=0123456789ab"), "of a newer operator"
    assert not shape.shapes_differ(mine, mine.replace(",restart.rules=default", "")), "of an older operator"
    assert not shape.shapes_differ(mine, mine + ",restart.maxRestarts=0123456789ab"), "of an operator before 0.3"
    assert not shape.shapes_differ(mine, "0123456789abcdef"), "of an operator that wrote one digest"
    assert shape.shapes_differ(mine, shape.spec_shape(job(backend="gloo")["spec"]))


def test_spec_changed_while_suspended_outdates_the_statefulset() -> None:
    stored, child = started()
    assert children.is_outdated(Job.from_object(job(stored["status"], replicas=2)), child)
    assert children.is_outdated(Job.from_object(job(stored["status"], restart={"stopGraceSeconds": 1})), child)
    assert not children.is_outdated(Job.from_object(job(stored["status"], restart={"maxRestarts": 1})), child)
