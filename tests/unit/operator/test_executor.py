"""Executing a plan: the order, the single status write, and the reporting of rejections.

No status is written without need.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dtj_core.plan.model import Apply, Delete, Event, Plan
from dtj_operator import errors
from dtj_operator.kube.executor import PlanExecutor, same_status
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.rejections import Rejected
from tests.unit.operator.fakes import FakeCache, FakeClient, FakeListeners, job

SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "j"},
    "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}},
}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "j"}}
EVENT = Event(type="Normal", reason="WorkersRunning", message="made")


class Recorded:
    def __init__(self, client: FakeClient) -> None:
        self.client = client

    async def record(self, job: Any, event: Event) -> None:
        self.client.calls.append(("event", event.reason, ""))


def execute(client: FakeClient, plan: Plan, of: Any = None) -> Any:
    async def main() -> Any:
        cache = FakeCache(client)
        observer = Observer(cache, client, FakeListeners())  # type: ignore[arg-type]
        return await PlanExecutor(client, cache, observer, Recorded(client)).execute(of or job(), plan)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_plan_is_executed_as_actions_then_status_then_events() -> None:
    client = FakeClient()
    actions = (Apply(body=SERVICE), Apply(body=SET), Delete(kind="Pod", name="j-1", uid="p1", grace_seconds=0))
    written = execute(client, Plan(actions=actions, status={"phase": "Pending"}, events=(EVENT,)))
    assert client.calls == [
        ("apply", "services", "j"),
        ("dry-run", "pods", "j-dry-run"),
        ("apply", "statefulsets", "j"),
        ("delete", "pods", "j-1"),
        ("apply", "distributedtrainingjobs/status", "j"),
        ("event", "WorkersRunning", ""),
    ]
    assert client.bodies[3] == {"uid": "p1", "grace": 0}
    assert written["status"] == {"phase": "Pending"}


def test_full_quota_keeps_no_set_from_shrinking() -> None:
    client = FakeClient()
    client.refuse["dry-run", "pods", "j-dry-run"] = errors.Forbidden("exceeded quota: q", status=403)
    execute(client, Plan(actions=(Apply(body=SET, adds_pods=False),)))
    assert client.calls == [("apply", "statefulsets", "j")]


def test_status_is_written_with_the_uid_of_its_job() -> None:
    client = FakeClient()
    execute(client, Plan(status={"phase": "Pending"}))
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
def test_status_is_written_only_if_it_changed(before: Any, after: Any, same: bool) -> None:
    assert same_status(before, after) is same
    client = FakeClient()
    execute(client, Plan(status=after), job(before))
    assert len(client.calls) == (0 if same else 1)


def test_job_deleted_by_its_ttl_gets_no_status() -> None:
    client = FakeClient()
    execute(
        client, Plan(actions=(Delete(kind="DistributedTrainingJob", name="j", uid="u1"),), status={"phase": "Complete"})
    )
    assert client.calls == [("delete", "distributedtrainingjobs", "j")]


@pytest.mark.parametrize("error", [errors.ObjectNotFound("gone", status=404), errors.Conflict("another", status=409)])
def test_missing_or_replaced_object_counts_as_deleted(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse["delete", "pods", "j-0"] = error
    execute(client, Plan(actions=(Delete(kind="Pod", name="j-0", uid="p"),), status={"phase": "Pending"}))
    assert client.calls[-1] == ("apply", "distributedtrainingjobs/status", "j")


RBAC = 'statefulsets.apps "j" is forbidden: User "jane" cannot patch resource "statefulsets" in API group "apps"'
POLICY = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: false"
OWNERS = "metadata.ownerReferences: Invalid value: Only one reference can have Controller set to true"
# Messages of kube-apiserver 1.36.
INVALID = [
    errors.Invalid(
        'StatefulSet.apps "j" is invalid: spec.template.spec.containers[0].image: Required value', status=422
    ),
    errors.Invalid(".spec.template.spec.containers[0].imge: field not declared in schema", status=500),
    errors.Invalid('Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string', status=400),
]
REFUSED = [
    errors.Forbidden(
        'pods "j" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', status=403
    ),
    errors.Forbidden('pods "j" is forbidden: maximum cpu usage per Container is 1, but limit is 2', status=403),
    errors.Forbidden(
        'pods "j" is forbidden: minimum memory usage per Container is 1Gi, but request is 64Mi', status=403
    ),
    errors.Forbidden('pods "j" is forbidden: failed quota: q: must specify limits.cpu for: c', status=403),
    errors.Forbidden('pods "j" is forbidden: status unknown for quota: q, resources: pods', status=403),
    errors.Forbidden(
        'pods "j" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0', status=403
    ),
    errors.Forbidden('admission webhook "w" denied the request: no', status=403),
    errors.Invalid('admission webhook "w" denied the request: not yet', status=422),
    errors.Invalid('admission webhook "w" denied the request: not yet', status=400),
    errors.Invalid('"j" is invalid: spec: Forbidden: updates to statefulset spec for fields other than', status=422),
    errors.Invalid('pods "j" is forbidden: ' + POLICY, status=422),
    errors.Forbidden(
        'pods "j" is forbidden: error looking up service account d/no: serviceaccount "no" not found', status=403
    ),
    errors.Forbidden('pods "j" is forbidden: no PriorityClass with name no was found', status=403),
    errors.Forbidden(
        '"j" is forbidden: unable to create new content in namespace n because it is being terminated', status=403
    ),
    errors.Conflict('Operation cannot be fulfilled on "j": the object has been modified', status=409),
    errors.ObjectNotFound('namespaces "n" not found', status=404),
    errors.Transient("Request entity too large: limit is 3145728", status=500),
    errors.Transient('Internal error occurred: failed calling webhook "w": connection refused', status=500),
    errors.Transient("etcdserver: leader changed", status=503),
]
name = lambda error: f"{error.status} {error.message[-40:]}"  # noqa: E731


def refusal_of(client: FakeClient, child: Any = SET) -> Rejected:
    with pytest.raises(Rejected) as refused:
        execute(client, Plan(actions=(Apply(body=child),), status={"phase": "Pending"}))
    return refused.value


@pytest.mark.parametrize("error", INVALID, ids=name)
@pytest.mark.parametrize("call", [("dry-run", "pods", "j-dry-run"), ("apply", "statefulsets", "j")], ids=["pod", "set"])
def test_only_an_invalid_object_is_rejected_permanently(error: errors.KubeError, call: Any) -> None:
    client = FakeClient()
    client.refuse[call] = error
    refused = refusal_of(client)
    assert (str(refused), refused.permanent) == (error.message, True)
    assert client.calls[-1] == call, "nothing more was created, and no status written"


@pytest.mark.parametrize("error", REFUSED, ids=name)
def test_every_other_error_is_a_temporary_rejection_with_the_servers_message(error: errors.KubeError) -> None:
    client = FakeClient()
    owners = [{"kind": "DistributedTrainingJob", "name": "j", "uid": "u1"}]
    client.objects["statefulsets", "j"] = SET | {"metadata": {"name": "j", "uid": "s", "ownerReferences": owners}}
    client.refuse["apply", "statefulsets", "j"] = error
    refused = refusal_of(client)
    assert (str(refused), refused.permanent) == (error.message, False)


@pytest.mark.parametrize("error", [e for e in REFUSED if not isinstance(e, errors.Conflict)], ids=name)
def test_rejected_pod_is_reported_before_the_set_is_created(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse["dry-run", "pods", "j-dry-run"] = error
    refused = refusal_of(client)
    assert (str(refused), refused.permanent) == (error.message, False)
    assert client.calls == [("dry-run", "pods", "j-dry-run")]


def test_child_without_the_template_is_never_rejected_permanently() -> None:
    client = FakeClient()
    client.refuse["apply", "services", "j"] = errors.Invalid('Service "j" is invalid: ' + OWNERS, status=422)
    assert not refusal_of(client, SERVICE).permanent
    client.refuse["apply", "statefulsets", "j"] = errors.Invalid(
        'StatefulSet.apps "j" is invalid: ' + OWNERS, status=422
    )
    assert not refusal_of(client).permanent


@pytest.mark.parametrize(
    "error",
    [
        errors.Forbidden('pods is forbidden: User "op" cannot create resource "pods" in API group ""', status=403),
        errors.Invalid('admission webhook "w" does not support dry run', status=400),
        errors.Conflict('pods "j-dry-run" already exists', status=409),
    ],
    ids=name,
)
def test_impossible_dry_run_keeps_no_job_from_its_pods(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse["dry-run", "pods", "j-dry-run"] = error
    execute(client, Plan(actions=(Apply(body=SET),), status={"phase": "Pending"}))
    assert ("apply", "statefulsets", "j") in client.calls


def test_dry_run_pod_has_the_metadata_that_a_stateful_set_copies() -> None:
    client = FakeClient()
    given = {
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "namespace": "elsewhere",
        "generateName": "x-",
        "uid": "u",
    }
    child = SET | {"spec": {"template": {"metadata": given, "spec": {}}}}
    execute(client, Plan(actions=(Apply(body=child),)))
    assert client.bodies[0]["metadata"] == {"labels": {"a": "b"}, "annotations": {"c": "d"}, "name": "j-dry-run"}


@pytest.mark.parametrize(
    "error",
    [
        errors.Transient("no answer in 10 s"),
        errors.Transient("too many requests", status=429),
        errors.NotAuthenticated("Unauthorized", status=401),
    ],
    ids=name,
)
def test_error_that_is_not_about_the_child_is_no_rejection(error: errors.KubeError) -> None:
    client = FakeClient()
    client.refuse["apply", "statefulsets", "j"] = error
    with pytest.raises(type(error)):
        execute(client, Plan(actions=(Apply(body=SET),)))


def test_existing_object_is_not_overwritten_by_an_if_missing_apply() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j-dtj-agent"}, "data": {}}
    plan = Plan(actions=(Apply(body=secret, if_missing=True),), status={"phase": "Pending"})
    client = FakeClient()
    client.refuse["create", "secrets", "j-dtj-agent"] = errors.Conflict("already exists", status=409)
    execute(client, plan)
    assert client.calls == [("create", "secrets", "j-dtj-agent"), ("apply", "distributedtrainingjobs/status", "j")]


def test_answers_reach_the_cache_before_the_next_plan() -> None:
    terminating = {"metadata": {"name": "j-1", "uid": "p1", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    kept: list[FakeCache] = []

    class Terminating(FakeClient):
        async def delete(self, resource: Any, namespace: str, name: str, **how: Any) -> Any:
            await super().delete(resource, namespace, name, **how)
            return terminating if name == "j-1" else {"kind": "Status"}

    async def main() -> None:
        client, cache = Terminating(), FakeCache(FakeClient())
        kept.append(cache)
        client.refuse["delete", "pods", "j-3"] = errors.ObjectNotFound("gone", status=404)
        observer = Observer(cache, client, FakeListeners())  # type: ignore[arg-type]
        executor = PlanExecutor(client, cache, observer, Recorded(client))  # type: ignore[arg-type]
        deleted = [Delete(kind="Pod", name=f"j-{i}", uid=f"p{i}") for i in (1, 2, 3)]
        await executor.execute(job(), Plan(actions=(Apply(body=SERVICE), *deleted), status={"phase": "Pending"}))

    asyncio.run(main())
    assert [answer["metadata"]["name"] for answer in kept[0].answers] == ["j", "j-1", "j"]
    assert kept[0].answers[1] is terminating, "a pod that terminates is still there"
    assert kept[0].gone == ["p2", "p3"]


SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j-agent"}, "data": {}}


@pytest.mark.parametrize(
    "error", [errors.Conflict("already exists", status=409), errors.Forbidden("exceeded quota: q", status=403)]
)
def test_secret_is_created_and_one_of_an_earlier_run_is_applied(error: errors.KubeError) -> None:
    """A full quota refuses the create before the API server looks for the name."""
    client = FakeClient()
    execute(client, Plan(actions=(Apply(body=SECRET),)))
    assert client.calls == [("create", "secrets", "j-agent")]
    client = FakeClient()
    client.refuse["create", "secrets", "j-agent"] = error
    execute(client, Plan(actions=(Apply(body=SECRET),)))
    assert client.calls == [("create", "secrets", "j-agent"), ("apply", "secrets", "j-agent")]


def test_owner_of_a_created_secret_is_no_controller() -> None:
    """A later job of this name could not become a second controller before the Secret is garbage-collected."""
    client = FakeClient()
    owners = [{"apiVersion": "v1", "kind": "K", "name": "j", "uid": "u", "controller": True}]
    execute(
        client, Plan(actions=(Apply(body=SECRET | {"metadata": SECRET["metadata"] | {"ownerReferences": owners}}),))
    )
    (owner,) = client.bodies[0]["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("u", False)


CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "j-checkpoints"}}


def test_claim_that_exists_may_be_refused_by_a_full_quota() -> None:
    client = FakeClient()
    client.objects["persistentvolumeclaims", "j-checkpoints"] = CLAIM
    client.refuse["create", "persistentvolumeclaims", "j-checkpoints"] = errors.Forbidden("exceeded quota", status=403)
    plan = Plan(actions=(Apply(body=CLAIM, if_missing=True),), status={"phase": "Pending"})
    execute(client, plan)
    assert client.calls[-1] == ("apply", "distributedtrainingjobs/status", "j")
    client.objects.clear()
    with pytest.raises(Rejected, match="exceeded quota"):
        execute(client, plan)


def test_secret_that_exists_may_be_refused_by_a_full_quota_to_a_repair() -> None:
    """The operator may not read Secrets, so an empty patch asks whether it is there."""
    client = FakeClient()
    client.refuse["create", "secrets", "j-agent"] = errors.Forbidden("exceeded quota: q", status=403)
    plan = Plan(actions=(Apply(body=SECRET, if_missing=True),), status={"phase": "Pending"})
    execute(client, plan)
    assert client.calls[1:] == [("patch", "secrets", "j-agent"), ("apply", "distributedtrainingjobs/status", "j")]
    assert client.bodies[1] == {}
    client.refuse["patch", "secrets", "j-agent"] = errors.ObjectNotFound("no", status=404)
    with pytest.raises(Rejected, match="exceeded quota"):
        execute(client, plan)
