"""An overtaken plan is dropped, and the job is planned again from a newer view."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dtj_core.plan.model import Apply, Object, Observed, Plan, Settings
from dtj_operator import errors
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.rejections import Rejected
from dtj_operator.kube.resources import STATEFUL_SET, Resource
from tests.unit.operator.fakes import FakeCache, FakeClient, FakeListeners, job
from tests.unit.operator.test_controller import KEY, Shell, client_with
from tests.unit.operator.test_executor import SERVICE, SET, Recorded, execute

MADE = Plan(actions=(Apply(body=SERVICE), Apply(body=SET)), status={"phase": "Pending"})


def test_status_is_written_under_the_planned_resource_version() -> None:
    client = FakeClient()
    execute(client, Plan(status={"phase": "Pending"}), job(resourceVersion="7"))
    assert client.bodies[0]["metadata"] == {"name": "j", "namespace": "ns", "uid": "u1", "resourceVersion": "7"}


CONFIRM = ("get", "distributedtrainingjobs", "j")
APPLY_SET = ("apply", "statefulsets", "j")


@pytest.mark.parametrize(
    "stored",
    [None, job(resourceVersion="8"), job(resourceVersion="7", uid="another")],
    ids=["deleted", "changed", "another job of that name"],
)
def test_overtaken_plan_creates_no_stateful_set(stored: Any) -> None:
    client = FakeClient() if stored is None else client_with(stored)
    with pytest.raises(errors.Overtaken, match="meanwhile"):
        execute(client, MADE, job(resourceVersion="7"))
    assert [call for call in client.calls if call[1] in ("statefulsets", "distributedtrainingjobs/status")] == []
    assert CONFIRM in client.calls


def test_role_without_the_right_to_get_jobs_is_a_rejection_that_names_it() -> None:
    """A role that somebody maintains by hand may lack it after an upgrade."""
    client = client_with(job(resourceVersion="7"))
    text = 'distributedtrainingjobs "j" is forbidden: User "o" cannot get resource "distributedtrainingjobs"'
    client.refuse[CONFIRM] = errors.Forbidden(text, status=403, reason="Forbidden")
    with pytest.raises(Rejected, match='cannot get resource "distributedtrainingjobs"') as caught:
        execute(client, MADE, job(resourceVersion="7"))
    assert not caught.value.permanent
    assert APPLY_SET not in client.calls


def test_plan_without_a_stateful_set_reads_nothing() -> None:
    client = client_with(job(resourceVersion="7"))
    execute(client, Plan(actions=(Apply(body=SERVICE),), status={"phase": "Pending"}), job(resourceVersion="7"))
    assert not [call for call in client.calls if call[0] in ("get", "list")]


def test_current_plan_creates_the_stateful_set() -> None:
    client = client_with(job(resourceVersion="7"))
    execute(client, MADE, job(resourceVersion="7"))
    assert [call[:2] for call in client.calls][-2:] == [
        ("apply", "statefulsets"),
        ("apply", "distributedtrainingjobs/status"),
    ]


def test_stateful_set_of_another_owner_is_left_alone() -> None:
    """A forced apply would take it over, and a job of the same name would lose its pods."""
    client = client_with(job(resourceVersion="7"))
    owner = {"kind": "DistributedTrainingJob", "name": "j", "uid": "another"}
    client.objects["statefulsets", "j"] = {"metadata": {"name": "j", "uid": "s", "ownerReferences": [owner]}}
    with pytest.raises(errors.Overtaken, match="another owner"):
        execute(client, MADE, job(resourceVersion="7"))
    assert APPLY_SET not in client.calls
    owner["uid"] = "u1"
    execute(client, MADE, job(resourceVersion="7"))
    assert APPLY_SET in client.calls


class Unlabelled(FakeClient):
    """Serves a StatefulSet that no cache shows, because it lacks the operator's label."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.hidden = {"metadata": {"name": "j", "uid": "s", "ownerReferences": [{"uid": owner}]}}
        self.forced: list[bool] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        self._called("get", resource.plural, name)
        return self.hidden if resource is STATEFUL_SET else job(resourceVersion="7")

    async def apply(self, resource: Resource, namespace: str, body: Any, **how: Any) -> Any:
        if resource is STATEFUL_SET:
            self.forced.append(how.get("force", True))
            if not self.forced[-1]:
                raise errors.Conflict("Apply failed with 3 conflicts", status=409)
        return await super().apply(resource, namespace, body, **how)


def test_unlabelled_stateful_set_of_somebody_else_is_found_and_left_alone() -> None:
    client = Unlabelled("another")
    with pytest.raises(errors.Overtaken, match="another owner"):
        execute(client, MADE, job(resourceVersion="7"))
    assert client.forced == [False]


WORKLOAD = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "j"}, "spec": {}}
QUEUED = Plan(actions=(Apply(body=WORKLOAD, if_missing=True),), status={"phase": "Pending"})


def test_workload_of_the_name_that_no_watch_shows_is_read_and_left_alone() -> None:
    """A job would wait for its admission for ever, without a cause."""
    client = client_with(job(resourceVersion="7"))
    client.refuse["create", "workloads", "j"] = errors.Conflict("exists", status=409)
    foreign = {"metadata": {"name": "j", "uid": "w"}}

    async def main() -> Observed:
        cache = FakeCache(client)
        observer = Observer(cache, client, FakeListeners())  # type: ignore[arg-type]
        executor = PlanExecutor(client, cache, observer, Recorded(client))  # type: ignore[arg-type]
        with pytest.raises(errors.Overtaken, match="a Workload of this name exists"):
            await executor.execute(job(resourceVersion="7"), QUEUED)
        client.objects["workloads", "j"] = foreign
        return await observer.observe(job(resourceVersion="7"))

    assert asyncio.run(main()).workload == foreign


def test_own_stateful_set_that_lost_its_label_is_applied_again() -> None:
    client = Unlabelled("u1")
    execute(client, MADE, job(resourceVersion="7"))
    assert client.forced == [False, True]


def test_status_write_conflict_plans_the_job_again() -> None:
    client = client_with(job(resourceVersion="7"))
    write = ("apply", "distributedtrainingjobs/status", "j")
    client.refuse[write] = errors.Conflict("the object has been modified", status=409)
    versions: list[str] = []

    def planner(obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
        versions.append(obj["metadata"]["resourceVersion"])
        client.objects["distributedtrainingjobs", "j"] = job(resourceVersion="8")
        if len(versions) == 2:
            client.refuse.clear()
        return Plan(status={"phase": "Running"})

    async def main() -> None:
        shell = Shell(client, planner)
        await shell.until(lambda: "success" in shell.results())
        assert shell.results() == {"conflict": 1, "success": 1}
        assert shell.queue.add_rate_limited(KEY) == 0.01, "the back-off is over"

    asyncio.run(main())
    assert versions == ["7", "8"]
