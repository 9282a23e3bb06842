"""Templates that no schema has seen, as an operator meets them beside an older CRD: each ends in a plan, none in an exception.

A seed that fails is printed by hypothesis and replays.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj_core.api.crd import schema
from dtj_core.api.encoding import apply_body
from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Object, Observed, Plan
from tests.unit.api.specs import BAD
from tests.unit.api.specs import job as written
from tests.unit.plan.build import (
    NOW,
    SETTINGS,
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
)  # fmt: skip

TEMPLATE = schema()["properties"]["spec"]["properties"]["template"]
garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "a", "60", "true", "²"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "key", "a"]), inner, max_size=2),
    max_leaves=4,
)


def like(node: Any) -> st.SearchStrategy[Any]:
    """Values of a schema's type, and now and then garbage in their place."""
    if "properties" in node:
        fields = {name: like(field) for name, field in node["properties"].items()}
        named = {"name": st.sampled_from(["trainer", "a"])} if fields.pop("name", None) is not None else {}
        right: st.SearchStrategy[Any] = st.fixed_dictionaries(named, optional=fields)
    elif node.get("type") == "array":
        right = st.lists(like(node["items"]), max_size=2)
    elif "additionalProperties" in node:
        right = st.dictionaries(st.sampled_from(["a", "nvidia.com/gpu"]), like(node["additionalProperties"]), max_size=2)
    else:
        kinds = {"integer": st.integers(-5, 100), "boolean": st.booleans(), "string": st.sampled_from(["a", "/tmp", "/dtj"])}
        right = kinds.get(node.get("type", ""), st.dictionaries(st.sampled_from(["nvidia.com/gpu", "cpu"]), garbage, max_size=2))
    return st.integers(0, 15).flatmap(lambda dice: garbage if dice == 0 else right)


def planned(template: Any) -> Plan:
    """The first plan of a job with this template; it must be one that can be sent, and change nothing of the job."""
    obj = job(template=template)
    before = deepcopy(obj)
    found = plan(obj, Observed(), NOW, SETTINGS)
    assert repr(obj) == repr(before)
    json.dumps([found.status, *(action.body for action in found.actions if isinstance(action, Apply))])
    return found


def verdict(found: Plan) -> Object:
    """The condition that says what is wrong; {} if the children are made."""
    assert bool(found.actions) is not bool(true_conditions(found.status))
    return condition(found.status, "Failed")


@settings(deadline=None, max_examples=150)
@given(like(TEMPLATE))
def test_any_template_is_made_into_children_or_ends_in_a_condition_with_the_path(template: Any) -> None:
    failed = verdict(planned(template))
    if failed:
        assert failed["reason"] == "InvalidSpec"
        assert "spec.template" in failed["message"] or failed["message"].startswith("spec.")


@settings(deadline=None, max_examples=150)
@given(garbage)
def test_plain_garbage_is_no_exception(template: Any) -> None:
    verdict(planned(template))


@pytest.mark.parametrize("case", [case for case in BAD if BAD[case][1].startswith("spec.template")])
def test_what_kubectl_apply_refuses_is_a_condition_where_an_older_crd_let_it_in(case: str) -> None:
    spec, path = BAD[case]
    stored = written(spec)
    stored["metadata"] |= {"namespace": "team", "uid": "u", "generation": 1}
    failed = verdict(plan(stored, Observed(), NOW, SETTINGS))
    assert (failed["reason"], path in failed["message"]) == ("InvalidSpec", True)


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": None, "spec": None},
        {"metadata": {"labels": None}, "spec": {"containers": None, "terminationGracePeriodSeconds": None}},
        {"spec": {"tolerations": None, "securityContext": None, "volumes": None, "initContainers": None}},
        {"spec": {"containers": [{"name": "t", "env": None, "ports": None, "resources": None, "terminationMessagePath": None}]}},
        {"spec": {"containers": [{"name": "t", "securityContext": {"capabilities": {"add": None}}, "volumeMounts": None}]}},
    ],
)
def test_a_null_is_as_if_it_were_not_there(template: Any) -> None:
    assert verdict(planned(template)) == {}


def test_a_number_of_gpus_that_is_none_counts_as_no_gpu() -> None:
    for amount in ("²", "9" * 5000, True, [8], {"a": 1}, 1.5, -1):
        container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": amount}}}
        assert verdict(planned({"spec": {"containers": [container]}})) == {}


def test_the_status_stays_small_whatever_agents_and_api_server_say() -> None:
    long = "\U0001f917" * 1_000_000
    failure = {"attempt": 1, "rank": 0, "pod": long, "node": long, "signal": long, "message": long, "logTail": long}
    metrics = {f"{number}{long}": 1.0 for number in range(100)}
    said = agent(
        failures=[failure] * 50,
        recoveries=[{"attempt": 1, "reason": long, "kind": long}] * 50,
        progress={"step": 1, "metrics": metrics},
        checkpoint={"path": long, "step": 1},
        phaseMessage=long,
        events=[{"type": "Warning", "reason": "RankSlow", "message": long, "time": NOW}] * 500,
    )
    stored, child = started()
    looks = [
        plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=said), NOW, SETTINGS),
        plan(job(), Observed(refusal=long), NOW, SETTINGS),
        plan(job(), Observed(rejection=long), NOW, SETTINGS),
        plan(stored, Observed(stateful_set=child, pods=(pod(0, containerStatuses=[over(long)]),)), NOW, SETTINGS),
    ]
    for look in looks:
        assert len(apply_body(look.status)) < 1_000_000, "etcd takes 1.5 MiB"
        assert all(len(event.message) <= 1000 for event in look.events)


def over(message: str) -> Object:
    """A container whose agent has ended the job with `message`."""
    return container(restarts=1, last=ended(outcome("Failed", message=message, failure={"logTail": message}), 1))
