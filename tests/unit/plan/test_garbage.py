"""Templates that no schema has checked, as under an older CRD: each yields a plan, none an
exception.

Hypothesis prints a failing seed, which replays.
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
from tests.unit.plan.objects import (
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
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "key", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def like(node: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for values of a schema's type, with garbage in some places."""
    if "properties" in node:
        fields = {name: like(field) for name, field in node["properties"].items()}
        named = {"name": st.sampled_from(["trainer", "a"])} if fields.pop("name", None) is not None else {}
        right: st.SearchStrategy[Any] = st.fixed_dictionaries(named, optional=fields)
    elif node.get("type") == "array":
        right = st.lists(like(node["items"]), max_size=2)
    elif "additionalProperties" in node:
        right = st.dictionaries(
            st.sampled_from(["a", "nvidia.com/gpu"]), like(node["additionalProperties"]), max_size=2
        )
    else:
        kinds = {
            "integer": st.integers(-5, 100),
            "boolean": st.booleans(),
            "string": st.sampled_from(["a", "/tmp", "/dtj"]),
        }
        right = kinds.get(
            node.get("type", ""), st.dictionaries(st.sampled_from(["nvidia.com/gpu", "cpu"]), garbage, max_size=2)
        )
    return st.integers(0, 15).flatmap(lambda dice: garbage if dice == 0 else right)


def planned(template: Any) -> Plan:
    """Returns the first plan of a job with this template.

    Planning must not change the job, and the plan must be sendable.
    """
    obj = job(template=template)
    before = deepcopy(obj)
    found = plan(obj, Observed(), NOW, SETTINGS)
    assert repr(obj) == repr(before)
    json.dumps([found.status, *(action.body for action in found.actions if isinstance(action, Apply))])
    return found


def verdict(found: Plan) -> Object:
    """Returns the condition that reports the mistake; {} if the children are created."""
    assert bool(found.actions) is not bool(true_conditions(found.status))
    return condition(found.status, "Failed")


@settings(deadline=None, max_examples=150)
@given(like(TEMPLATE))
def test_any_template_yields_children_or_a_condition_with_the_path(template: Any) -> None:
    failed = verdict(planned(template))
    if failed:
        assert failed["reason"] == "InvalidSpec"
        assert "spec.template" in failed["message"] or failed["message"].startswith("spec.")


@settings(deadline=None, max_examples=150)
@given(garbage)
def test_plain_garbage_raises_no_exception(template: Any) -> None:
    verdict(planned(template))


@pytest.mark.parametrize("case", [case for case in BAD if BAD[case][1].startswith("spec.template")])
def test_invalid_template_admitted_by_an_older_crd_sets_a_condition(case: str) -> None:
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
        {
            "spec": {
                "containers": [
                    {"name": "t", "env": None, "ports": None, "resources": None, "terminationMessagePath": None}
                ]
            }
        },
        {
            "spec": {
                "containers": [{"name": "t", "securityContext": {"capabilities": {"add": None}}, "volumeMounts": None}]
            }
        },
    ],
)
def test_null_in_a_template_equals_a_missing_field(template: Any) -> None:
    assert verdict(planned(template)) == {}


def test_invalid_number_of_gpus_counts_as_no_gpu() -> None:
    for amount in ("²", "9" * 5000, True, [8], {"a": 1}, 1.5, -1):
        container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": amount}}}
        assert verdict(planned({"spec": {"containers": [container]}})) == {}


def test_status_stays_small_whatever_agents_and_api_server_report() -> None:
    long = "\U0001f917" * 1_000_000
    failure = {"attempt": 1, "rank": 0, "pod": long, "node": long, "signal": long, "message": long, "logTail": long}
    metrics = {f"{number}{long}": 1.0 for number in range(100)}
    garbage = agent(
        failures=[failure] * 50,
        recoveries=[{"attempt": 1, "reason": long, "kind": long}] * 50,
        progress={"step": 1, "metrics": metrics},
        checkpoint={"path": long, "step": 1},
        phaseMessage=long,
        events=[{"type": "Warning", "reason": "RankSlow", "message": long, "time": NOW}] * 500,
    )
    stored, child = started()
    looks = [
        plan(stored, Observed(stateful_set=child, service=service(), pods=pods(), agent=garbage), NOW, SETTINGS),
        plan(job(), Observed(refusal=long), NOW, SETTINGS),
        plan(job(), Observed(rejection=long), NOW, SETTINGS),
        plan(stored, Observed(stateful_set=child, pods=(pod(0, containerStatuses=[over(long)]),)), NOW, SETTINGS),
    ]
    for look in looks:
        assert len(apply_body(look.status)) < 1_000_000, "etcd accepts 1.5 MiB"
        assert all(len(event.message) <= 1000 for event in look.events)


def over(message: str) -> Object:
    """Returns a container whose agent ended the job with `message`."""
    return container(restarts=1, last=ended(outcome("Failed", message=message, failure={"logTail": message}), 1))
