"""Observing: reads are repeated after every event, and reports of agents come from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan.leader_search import reachable_pods
from dtj_core.plan.model import Settings
from dtj_operator.following.listener import Heard
from dtj_operator.kube.observer import Observer
from tests.unit.operator.fakes import FakeClient, FakeListeners, job

KEY = ("ns", "j")


def settings(port: int) -> Settings:
    return Settings(agent_image="i", master_key=b"m" * 32, agent_port=port)


def pod(ordinal: int = 0, ip: str | None = "127.0.0.1", state: str = "running") -> Any:
    status: Any = {
        "containerStatuses": [{"name": "side", "state": {}}, {"name": names.CONTAINER, "state": {state: {}}}]
    }
    if ip:
        status["podIP"] = ip
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGER,
        names.LABEL_JOB: "j",
        names.LABEL_POD_INDEX: str(ordinal),
    }
    metadata = {"name": f"j-{ordinal}", "uid": f"p{ordinal}", "labels": labels, "ownerReferences": [{"uid": "set"}]}
    return {"metadata": metadata, "status": status}


SET = {"metadata": {"name": "j", "uid": "set", "ownerReferences": [{"uid": "u1"}]}}


def client_with(*pods: Any) -> FakeClient:
    """Returns a client that serves a job, its StatefulSet, and these pods."""
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()
    client.objects["statefulsets", "j"] = SET
    for each in pods:
        client.objects["pods", each["metadata"]["name"]] = each
    return client


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def observing(
    client: FakeClient,
    clock: Clock,
    test: Callable[[Observer], Awaitable[None]],
    listeners: FakeListeners | None = None,
) -> None:
    async def main() -> None:
        await test(Observer(client, listeners or FakeListeners(), now=clock))  # type: ignore[arg-type]

    asyncio.run(main())


async def look(observer: Observer) -> Any:
    found = await observer.get_job(KEY)
    assert found is not None
    return await observer.observe(found)


def test_observed_children_are_as_served_and_missing_ones_are_none() -> None:
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.stateful_set, observed.service, observed.pods, observed.agent) == (None, None, (), None)
        observer.invalidate(KEY)
        client.objects["statefulsets", "j"] = {"metadata": {"name": "j", "uid": "set"}, "newField2027": 1}
        client.objects["pods", "j-1"] = pod(1)
        observed = await look(observer)
        assert observed.stateful_set == {"metadata": {"name": "j", "uid": "set"}, "newField2027": 1}
        assert observed.pods == (pod(1),)
        assert await observer.get_job(("ns", "other")) is None

    observing(client, Clock(), test)


def test_children_of_other_jobs_and_namespaces_are_not_observed() -> None:
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()
    other = pod(0)
    other["metadata"]["labels"] |= {names.LABEL_JOB: "k"}
    client.objects["pods", "k-0"] = other
    client.objects["services", "j"] = {"metadata": {"name": "j", "namespace": "elsewhere"}}

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.service, observed.pods) == (None, ())

    observing(client, Clock(), test)


def test_reads_are_reused_for_half_a_minute_without_an_event() -> None:
    client, clock = client_with(pod()), Clock()

    async def test(observer: Observer) -> None:
        await look(observer)
        assert len(client.calls) == 4
        clock.now = 29
        await look(observer)
        assert len(client.calls) == 4
        clock.now = 31
        await look(observer)
        assert len(client.calls) == 8
        observer.invalidate(KEY)
        await look(observer)
        assert len(client.calls) == 12
        observer.keep_only([])
        await look(observer)
        assert len(client.calls) == 16

    observing(client, clock, test)


def test_reads_of_a_job_without_a_reachable_agent_are_not_kept() -> None:
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()

    async def test(observer: Observer) -> None:
        await look(observer)
        await look(observer)
        assert len(client.calls) == 8

    observing(client, Clock(), test)


@pytest.mark.parametrize("moment", ["distributedtrainingjobs", "pods"])
def test_reads_during_a_change_are_not_reused(moment: str) -> None:
    client = client_with(pod())

    async def test(observer: Observer) -> None:
        called = client._called

        def hear(verb: str, plural: str, name: str, body: Any = None) -> None:
            called(verb, plural, name, body)
            if plural == moment:
                observer.invalidate(KEY)

        client._called = hear  # type: ignore[method-assign]
        await look(observer)
        await look(observer)
        assert len(client.calls) == 8

    observing(client, Clock(), test)


@pytest.mark.parametrize(
    ("pods", "asked"),
    [
        ((), ()),
        ((pod(1),), (pod(1),)),
        ((pod(0, ip=None),), ()),
        ((pod(0, state="waiting"), pod(1)), (pod(1),)),
        ((pod(0, state="terminated"),), ()),
        ((pod(10), pod(9), pod(0)), (pod(0), pod(9), pod(10))),
    ],
)
def test_agents_may_be_asked_once_their_pods_have_an_address_and_run(pods: Any, asked: Any) -> None:
    assert reachable_pods(job(), SET, pods) == asked


def test_foreign_pod_with_our_labels_is_never_asked() -> None:
    stranger = pod(0)
    stranger["metadata"]["ownerReferences"] = []
    assert reachable_pods(job(), SET, (stranger,)) == ()
    assert reachable_pods(job(), {"metadata": {"uid": "set"}}, (pod(0),)) == ()
    assert reachable_pods(job(), None, (pod(0),)) == ()


def test_report_of_the_agents_is_observed_without_a_wait() -> None:
    heard = Heard(page={"uid": "u1"}, silent_seconds=0.0, is_known=True)

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.agent, observed.agent_silent_seconds, observed.agent_asked) == ({"uid": "u1"}, 0.0, True)

    observing(client_with(pod()), Clock(), test, FakeListeners(heard))


def test_silence_of_the_agents_is_observed_with_its_cause() -> None:
    heard = Heard(silent_seconds=61.0, cause="refused")

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.agent, observed.agent_silent_seconds) == (None, 61.0)
        assert (observed.agent_silence, observed.agent_asked) == ("refused", False)

    observing(client_with(pod()), Clock(), test, FakeListeners(heard))


@pytest.mark.parametrize("metadata", [None, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
def test_listener_ends_with_its_job(metadata: Any) -> None:
    client, listeners = client_with(pod()), FakeListeners()
    if metadata is None:
        del client.objects["distributedtrainingjobs", "j"]
    else:
        client.objects["distributedtrainingjobs", "j"] = job(**metadata)

    async def test(observer: Observer) -> None:
        await observer.get_job(KEY)
        assert listeners.ended == [KEY]
        observer.keep_only([("ns", "k")])
        assert listeners.kept == [("ns", "k")]

    observing(client, Clock(), test, listeners)
