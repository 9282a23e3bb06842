"""Carrying out a plan: order, one status write and none without need, and who is told of a refusal."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from dtj_operator import errors
from dtj_operator.kube.agent import AgentClient
from dtj_operator.kube.apply import Rejected, World, for_good, same_status
from dtj_operator.kube.observe import Observer
from dtj_operator.plan.model import Apply, Delete, Event, Plan, Settings
from tests.operator.fakes import FakeClient, job

SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "j"},
    "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}},
}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "j"}}
EVENT = Event(type="Normal", reason="ChildrenCreated", message="made")


class Recorded:
    def __init__(self, client: FakeClient) -> None:
        self.client = client

    async def record(self, job: Any, event: Event) -> None:
        self.client.calls.append(("event", event.reason, ""))


def carry_out(client: FakeClient, plan: Plan, of: Any = None) -> Any:
    async def main() -> Any:
        agents = AgentClient(Settings(agent_image="i", master_key=b"k" * 32))
        try:
            observer = Observer(client, agents)  # type: ignore[arg-type]
            return await World(client, observer, Recorded(client)).carry_out(of or job(), plan)  # type: ignore[arg-type]
        finally:
            await agents.close()

    return asyncio.run(main())


def test_actions_in_order_then_the_status_then_the_events() -> None:
    client = FakeClient()
    actions = (Apply(body=SERVICE), Apply(body=SET), Delete(kind="Pod", name="j-1", uid="p1", grace_seconds=0))
    written = carry_out(client, Plan(actions=actions, status={"phase": "Pending"}, events=(EVENT,)))
    assert client.calls == [
        ("apply", "services", "j"),
        ("dry-run", "pods", "j-dry-run"),
        ("apply", "statefulsets", "j"),
        ("delete", "pods", "j-1"),
        ("apply", "distributedtrainingjobs/status", "j"),
        ("event", "ChildrenCreated", ""),
    ]
    assert client.bodies[3] == {"uid": "p1", "grace": 0}
    assert written["status"] == {"phase": "Pending"}


def test_a_status_is_written_with_the_jobs_uid_so_that_it_lands_on_no_other() -> None:
    client = FakeClient()
    carry_out(client, Plan(status={"phase": "Pending"}))
    assert client.bodies[0]["metadata"] == {"name": "j", "namespace": "ns", "uid": "u1"}


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({}, {}, True),
        ({"phase": "Running"}, {"phase": "Running"}, True),
        ({"phase": "Running"}, {"phase": "Failed"}, False),
        ({"conditions": [{"type": "A"}, {"type": "B"}]}, {"conditions": [{"type": "B"}, {"type": "A"}]}, True),
        ({"conditions": [{"type": "A", "status": "True"}]}, {"conditions": [{"type": "A", "status": "False"}]}, False),
        ({"phase": "Running"}, {"phase": "Running", "reason": None}, True),
        ({"progress": {"step": 1}}, {"progress": {"step": 1, "loss": None}}, True),
        ({"failures": [{"rank": 1}, {"rank": 2}]}, {"failures": [{"rank": 2}, {"rank": 1}]}, False),
        ({"lastUpdateTime": "1"}, {"lastUpdateTime": "2"}, True),
        ({"goodput": 1}, {"goodput": 1.0}, True),
    ],
)
def test_a_status_is_written_only_where_it_says_something_else(before: Any, after: Any, same: bool) -> None:
    assert same_status(before, after) is same
    client = FakeClient()
    carry_out(client, Plan(status=after), job(before))
    assert len(client.calls) == (0 if same else 1)


def test_a_job_whose_time_to_live_is_over_gets_no_status_any_more() -> None:
    client = FakeClient()
    carry_out(client, Plan(actions=(Delete(kind="DistributedTrainingJob", name="j", uid="u1"),), status={"phase": "Complete"}))
    assert client.calls == [("delete", "distributedtrainingjobs", "j")]


@pytest.mark.parametrize("error", [errors.NotFound("gone", status=404), errors.Conflict("another", status=409)])
def test_what_is_gone_or_is_another_object_by_now_counts_as_deleted(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse["delete", "pods", "j-0"] = error
    carry_out(client, Plan(actions=(Delete(kind="Pod", name="j-0", uid="p"),), status={"phase": "Pending"}))
    assert client.calls[-1] == ("apply", "distributedtrainingjobs/status", "j")


RBAC = 'statefulsets.apps "j" is forbidden: User "jane" cannot patch resource "statefulsets" in API group "apps"'


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        # Messages as kube-apiserver 1.36 gave them.
        (errors.Invalid('StatefulSet.apps "j" is invalid: spec.template.spec.containers[0].image: Required value'), True),
        (errors.Invalid(".spec.template.spec.containers[0].imge: field not declared in schema"), True),
        (errors.Forbidden('pods "j" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'), True),
        (errors.Forbidden('pods "j" is forbidden: maximum cpu usage per Container is 1, but limit is 2'), True),
        (errors.Forbidden('pods "j" is forbidden: failed quota: q: must specify limits.cpu for: c'), True),
        (errors.Forbidden('admission webhook "w" denied the request: no'), True),
        (errors.Forbidden('pods "j" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0'), False),
        (errors.Forbidden('pods "j" is forbidden: error looking up service account d/no: serviceaccount "no" not found'), False),
        (errors.Forbidden('pods "j" is forbidden: no PriorityClass with name no was found'), False),
        (errors.Forbidden('"j" is forbidden: unable to create new content in namespace n because it is being terminated'), False),
        (errors.Invalid('admission webhook "w" does not support dry run'), False),
        (errors.Forbidden(RBAC), False),
    ],
)
def test_only_a_refusal_that_time_does_not_heal_rejects_the_template(
    error: errors.Invalid | errors.Forbidden, permanent: bool
) -> None:
    assert for_good(error) is permanent
    client = FakeClient()
    client.refuse["dry-run", "pods", "j-dry-run"] = error
    plan = Plan(actions=(Apply(body=SET),), status={"phase": "Pending"})
    if permanent:
        with pytest.raises(Rejected) as refused:
            carry_out(client, plan)
        assert refused.value.for_good
        assert client.calls == [("dry-run", "pods", "j-dry-run")], "nothing was made, no status written"
    else:
        carry_out(client, plan)
        assert ("apply", "statefulsets", "j") in client.calls, "the StatefulSet controller tries until it is let"


QUOTA = 'statefulsets.apps "j" is forbidden: exceeded quota: q, requested: count/statefulsets.apps=1, used: 0, limited: 0'
WEBHOOK = 'PATCH /apis: Internal error occurred: failed calling webhook "w": connection refused'


@pytest.mark.parametrize(
    "error",
    [
        errors.Forbidden(RBAC, status=403),  # the installation is wrong, not the job
        errors.Forbidden(QUOTA, status=403),
        errors.Transient(WEBHOOK, status=500),
    ],
)
def test_a_child_that_is_refused_for_now_does_not_end_the_job_and_the_planner_gets_the_words(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse["apply", "statefulsets", "j"] = error
    with pytest.raises(Rejected, match=re.escape(error.message)) as refused:
        carry_out(client, Plan(actions=(Apply(body=SET),)))
    assert not refused.value.for_good


def test_an_api_server_that_does_not_answer_is_no_refusal() -> None:
    client = FakeClient()
    client.refuse["apply", "statefulsets", "j"] = errors.Transient("no answer in 10 s")
    with pytest.raises(errors.Transient):
        carry_out(client, Plan(actions=(Apply(body=SET),)))


def test_what_is_to_be_made_if_it_is_missing_is_never_written_over() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j-dtj-agent"}, "data": {}}
    plan = Plan(actions=(Apply(body=secret, if_missing=True),), status={"phase": "Pending"})
    client = FakeClient()
    client.refuse["create", "secrets", "j-dtj-agent"] = errors.Conflict("already exists", status=409)
    carry_out(client, plan)
    assert client.calls == [("create", "secrets", "j-dtj-agent"), ("apply", "distributedtrainingjobs/status", "j")]
