"""An upgrade or a rollback of operator or CRD: a job that runs is neither ended nor restarted by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj_core import api
from dtj_core.api.v1alpha1 import Checkpoint, Restart, Spec
from dtj_core.plan import children, plan, shape
from dtj_core.plan.job import Job
from dtj_core.plan.model import Delete, Object, Observed
from tests.unit.plan.build import (
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
    "nearly nothing is left of it": {"replicas": "many", "suspend": "no", "template": 7, "checkpoint": []},
}


def running() -> tuple[Object, Observed]:
    """A job that runs, as an operator that could read its spec has written it."""
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    return plan(stored, seen, NOW, SETTINGS).status, seen


@pytest.mark.parametrize("case", NEWER)
def test_a_running_job_with_a_spec_of_another_version_goes_on_and_says_so(case: str) -> None:
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
    assert again.requeue_after == 2, "its agent is asked on"


@pytest.mark.parametrize("case", NEWER)
def test_a_version_that_can_read_the_spec_again_goes_on_as_if_nothing_had_been(case: str) -> None:
    status, seen = running()
    stalled = plan(job(status, **NEWER[case]), seen, NOW + 5, SETTINGS).status
    back = plan(job(stalled), seen, NOW + 9, SETTINGS)
    assert (back.actions, back.events) == ((), ())
    assert back.status["conditions"] == status["conditions"]


@pytest.mark.parametrize("result", ["Succeeded", "Failed"])
def test_the_outcome_of_a_job_that_can_not_be_read_ends_it(result: str) -> None:
    status, seen = running()
    told = pod(0, phase="Running", containerStatuses=[container(restarts=1, last=ended(outcome(result), 1))])
    seen = Observed(stateful_set=seen.stateful_set, service=seen.service, pods=(told,))
    end = plan(job(status, backend="mpi"), seen, NOW + 5, SETTINGS)
    assert true_conditions(end.status) == ["Complete" if result == "Succeeded" else "Failed"]
    assert condition(end.status, "Stalled") == {}


def test_a_container_of_another_name_still_tells_its_outcome() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "i"}], "volumes": [{"name": "dtj-tmp"}]}}
    told = pod(0, phase="Running", containerStatuses=[container("main", restarts=1, last=ended(outcome(), 0))])
    status, seen = running()
    seen = Observed(stateful_set=seen.stateful_set, service=seen.service, pods=(told,))
    end = plan(job(status, image=None, template=template), seen, NOW + 5, SETTINGS)
    assert true_conditions(end.status) == ["Complete"]


def test_the_deadline_and_a_suspension_of_a_job_that_can_not_be_read_are_followed() -> None:
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


def test_a_crash_of_an_agent_does_not_end_a_job_whose_budget_can_not_be_read() -> None:
    status, seen = running()
    crashed = container(restarts=99, last=ended("", 1), waiting={"reason": "CrashLoopBackOff"})
    seen = Observed(stateful_set=seen.stateful_set, service=seen.service, pods=(pod(0, containerStatuses=[crashed]),))
    wanted = plan(job(status, restart={"maxRestarts": 5000}), seen, NOW + 5, SETTINGS)
    assert "Failed" not in true_conditions(wanted.status)


@pytest.mark.parametrize("status", [None, {"conditions": [{"type": "Suspended", "status": "True"}]}], ids=["new", "queued"])
def test_a_job_of_another_version_that_has_not_run_waits_for_its_operator(status: Any) -> None:
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
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["spec", "containers", "name"]), inner, max_size=2)
    ),
    max_leaves=8,
)
SHAPING = ("replicas", "processesPerPod", "backend", "entrypoint", "image", "template", "checkpoint", "restart")


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(SHAPING), json_values, max_size=4))
def test_whatever_stands_in_the_spec_of_a_running_job_its_pods_stay_and_its_outcome_ends_it(spec: Object) -> None:
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
    told = agent(outcome=outcome())
    end = plan(body, replace(seen, agent=told), NOW + 6, SETTINGS)
    assert true_conditions(end.status) == ["Complete"]


def job_of(body: Object) -> Job:
    return Job.salvage(body, "")


# --- the shape -------------------------------------------------------------------------------------------------------
LIVE = {"suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "cleanPodPolicy", "forceDeletePods"}
FROZEN = (
    "replicas=default,processesPerPod=default,backend=default,entrypoint.script=default,"
    "entrypoint.module=80d5b9c7c81e,entrypoint.args=default,image=4d527f39861b,template=default,"
    "checkpoint.volume.claimName=default,checkpoint.volume.hostPath.path=default,"
    "checkpoint.volume.hostPath.type=default,checkpoint.volume.source=default,checkpoint.mountPath=default,"
    "checkpoint.everySteps=default,checkpoint.keep=default,restart.maxRestarts=default,restart.windowSeconds=default"
)


def test_the_shape_of_a_job_is_the_one_that_every_version_before_has_written() -> None:
    """The table may gain entries, at its end. An entry that changes restarts every job that runs at the upgrade."""
    assert shape.spec_shape({"image": "trainer:cpu", "entrypoint": {"module": "train"}}).startswith(FROZEN)


def test_every_field_of_the_spec_that_is_not_live_is_in_the_table() -> None:
    known = {path.partition(".")[0] for path in shape.FIELDS}
    assert known == {info.alias for info in Spec.model_fields.values()} - LIVE
    for name, model in (("checkpoint", Checkpoint), ("restart", Restart)):
        nested = {path.split(".")[1] for path in shape.FIELDS if path.startswith(name)}
        assert nested >= {info.alias for info in model.model_fields.values()}


@pytest.mark.parametrize("field", ["maxRestarts", "windowSeconds"])
def test_a_default_that_another_version_changes_restarts_nothing(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, child = started()  # its stored spec says nothing of restarts
    monkeypatch.setattr(api, "read", read_with_defaults(**{field: 7}))
    assert Job.from_object(stored).spec.restart.model_dump(by_alias=True)[field] == 7
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert plan(stored, seen, NOW, SETTINGS).actions == ()


def read_with_defaults(**restart: int) -> Any:
    """`api.read` of a version whose defaults are these."""
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
def test_what_another_version_of_the_crd_fills_in_restarts_nothing(spec: Object) -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert plan(job(stored["status"], **spec), seen, NOW, SETTINGS).actions == ()


def test_shapes_of_two_versions_are_compared_where_both_know_the_field() -> None:
    mine = shape.spec_shape(job()["spec"])
    assert not shape.shapes_differ(mine, mine + ",communication.algorithm=0123456789ab"), "of a newer operator"
    assert not shape.shapes_differ(mine, mine.replace(",restart.windowSeconds=default", "")), "of an older operator"
    assert not shape.shapes_differ(mine, "0123456789abcdef"), "of an operator that wrote one digest"
    assert shape.shapes_differ(mine, shape.spec_shape(job(backend="gloo")["spec"]))


def test_a_spec_that_was_changed_while_suspended_still_makes_the_pods_anew() -> None:
    stored, child = started()
    assert children.is_outdated(Job.from_object(job(stored["status"], replicas=2)), child)
    assert children.is_outdated(Job.from_object(job(stored["status"], restart={"maxRestarts": 1})), child)
