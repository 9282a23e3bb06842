"""An overtaken plan is dropped, and the job is read again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dtj_core.plan.model import Apply, Object, Observed, Plan, Settings
from dtj_operator import errors
from tests.unit.operator.fakes import FakeClient, job
from tests.unit.operator.test_controller import KEY, Shell, client_with
from tests.unit.operator.test_executor import SERVICE, SET, execute

MADE = Plan(actions=(Apply(body=SERVICE), Apply(body=SET)), status={"phase": "Pending"})


def test_status_is_written_under_the_planned_resource_version() -> None:
    client = FakeClient()
    execute(client, Plan(status={"phase": "Pending"}), job(resourceVersion="7"))
    assert client.bodies[0]["metadata"] == {"name": "j", "namespace": "ns", "uid": "u1", "resourceVersion": "7"}


@pytest.mark.parametrize(
    "stored",
    [job(resourceVersion="8"), job(resourceVersion="7", uid="another"), None],
    ids=["changed", "another job of that name", "deleted"],
)
def test_overtaken_plan_creates_no_stateful_set(stored: Any) -> None:
    client = client_with(stored) if stored else FakeClient()
    with pytest.raises(errors.Conflict, match="meanwhile"):
        execute(client, MADE, job(resourceVersion="7"))
    assert [call for call in client.calls if call[1] in ("statefulsets", "distributedtrainingjobs/status")] == []


def test_current_plan_creates_the_stateful_set() -> None:
    client = client_with(job(resourceVersion="7"))
    execute(client, MADE, job(resourceVersion="7"))
    assert [call[:2] for call in client.calls][-2:] == [
        ("apply", "statefulsets"),
        ("apply", "distributedtrainingjobs/status"),
    ]


def test_stateful_set_that_another_owner_has_created_meanwhile_is_left_alone() -> None:
    """A forced apply would take it over, and a job of the same name would lose its pods."""
    client = client_with(job(resourceVersion="7"))
    owner = {"kind": "DistributedTrainingJob", "name": "j", "uid": "another"}
    client.objects["statefulsets", "j"] = {"metadata": {"name": "j", "uid": "s", "ownerReferences": [owner]}}
    with pytest.raises(errors.Overtaken, match="another owner"):
        execute(client, MADE, job(resourceVersion="7"))
    assert [call for call in client.calls if call[:2] == ("apply", "statefulsets")] == []
    owner["uid"] = "u1"
    execute(client, MADE, job(resourceVersion="7"))
    assert ("apply", "statefulsets", "j") in client.calls


def test_status_write_conflict_reads_and_plans_the_job_again() -> None:
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
    assert client.calls.count(("get", "distributedtrainingjobs", "j")) == 2
