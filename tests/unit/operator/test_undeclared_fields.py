"""A status for a CRD that lacks some of its fields."""

from __future__ import annotations

import pytest

from dtj_core.plan.model import Plan
from dtj_operator import errors
from dtj_operator.kube import undeclared_fields
from tests.unit.operator.fakes import FakeClient
from tests.unit.operator.test_executor import execute

# A message of kube-apiserver 1.36.
REFUSAL = """failed to create typed patch object (t1/j; training.dtj.dev/v1alpha1, Kind=DistributedTrainingJob): errors:
  .status.progress.eta: field not declared in schema
  .status.conditions[type="A"].observedGeneration: field not declared in schema
  .status.failures[0].logTail: field not declared in schema
  .status.failures[1].logTail: field not declared in schema
  .status.goodput: field not declared in schema
"""
ONE = "failed to create typed patch object (t1/j; x/v1, Kind=J): .status.agent.eventTime: field not declared in schema"


def test_undeclared_fields_are_read_from_the_servers_message() -> None:
    expected = {
        ("progress", "eta"),
        ("conditions", "[]", "observedGeneration"),
        ("failures", "[]", "logTail"),
        ("goodput",),
    }
    assert undeclared_fields.named(REFUSAL) == expected
    assert undeclared_fields.named(ONE) == {("agent", "eventTime")}
    assert undeclared_fields.named(".spec.template.imge: field not declared in schema") == frozenset()


def test_status_loses_only_the_undeclared_fields() -> None:
    status = {
        "goodput": 1.0,
        "progress": {"eta": "x", "step": 3},
        "conditions": [{"type": "A", "observedGeneration": 1}],
        "failures": [{"rank": 0, "logTail": "x"}, {"rank": 1}],
    }
    assert undeclared_fields.without(status, undeclared_fields.named(REFUSAL)) == {
        "progress": {"step": 3},
        "conditions": [{"type": "A"}],
        "failures": [{"rank": 0}, {"rank": 1}],
    }
    assert undeclared_fields.without(status, frozenset()) == status


def test_persistent_rejection_is_an_error_that_names_the_crd() -> None:
    client = FakeClient()
    client.refuse["apply", "distributedtrainingjobs/status", "j"] = errors.Invalid(ONE, status=500)
    with pytest.raises(errors.Invalid, match="the CRD is older than the operator"):
        execute(client, Plan(status={"phase": "Pending", "agent": {"eventTime": 1.0}}))
    assert [body["status"] for body in client.bodies] == [
        {"phase": "Pending", "agent": {"eventTime": 1.0}},
        {"phase": "Pending", "agent": {}},
    ]
