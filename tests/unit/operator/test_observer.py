"""Observing: children come from the cache, progress from the agents, and nothing else is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from dtj_contract import names
from dtj_contract.status_token import status_token
from dtj_core.plan.children import agent_key
from dtj_core.plan.leader_search import reachable_pods
from dtj_core.plan.model import Settings
from dtj_operator.agent_client import AgentClient
from dtj_operator.kube.cache.store import Key
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.resources import SERVICE, Resource
from tests.unit.operator.fakes import FakeCache, FakeClient, job

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


def observing(client: FakeClient, test: Callable[[Observer], Awaitable[None]], port: int = 1) -> None:
    async def main() -> None:
        agents = AgentClient(settings(port))
        try:
            await test(Observer(FakeCache(client), client, agents))  # type: ignore[arg-type]
        finally:
            await agents.close()

    asyncio.run(main())


async def look(observer: Observer) -> Any:
    found = observer.get_job(KEY)
    assert found is not None
    return await observer.observe(found)


def test_observed_children_are_as_served_and_missing_ones_are_none() -> None:
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.stateful_set, observed.service, observed.pods, observed.agent) == (None, None, (), None)
        client.objects["statefulsets", "j"] = {"metadata": {"name": "j", "uid": "set"}, "newField2027": 1}
        client.objects["pods", "j-1"] = pod(1)
        observed = await look(observer)
        assert observed.stateful_set == {"metadata": {"name": "j", "uid": "set"}, "newField2027": 1}
        assert observed.pods == (pod(1),)
        assert observer.get_job(("ns", "other")) is None

    observing(client, test)


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

    observing(client, test)


def test_look_at_a_job_reads_nothing_from_the_api_server() -> None:
    client = client_with(pod())

    async def test(observer: Observer) -> None:
        for _ in range(3):
            assert (await look(observer)).stateful_set is SET
        assert client.calls == []

    observing(client, test)


class Hiding(FakeCache):
    """Shows no Service and no StatefulSet, as if they lacked the operator's label."""

    hides = True

    def child(self, resource: Resource, key: Key) -> Any:
        return None if self.hides else super().child(resource, key)


def hiding(client: FakeClient, test: Callable[[Observer, Hiding], Awaitable[None]]) -> None:
    async def main() -> None:
        agents, cache = AgentClient(settings(1)), Hiding(client)
        try:
            await test(Observer(cache, client, agents), cache)  # type: ignore[arg-type]
        finally:
            await agents.close()

    asyncio.run(main())


def test_foreign_object_of_a_childs_name_is_read_until_it_is_gone_or_cached() -> None:
    client = client_with()
    foreign = {"metadata": {"name": "j", "uid": "web"}}
    read = ("get", "services", "j")

    async def test(observer: Observer, cache: Hiding) -> None:
        client.objects["services", "j"] = foreign
        observer.add_unlabelled(SERVICE, KEY)
        for number in (1, 2):
            assert (await look(observer)).service == foreign
            assert client.calls == [read] * number
        del client.objects["services", "j"]
        assert (await look(observer)).service is None
        await look(observer)
        assert client.calls == [read] * 3
        observer.add_unlabelled(SERVICE, KEY)
        observer.keep_only([])
        client.objects["services", "j"] = foreign
        observer.add_unlabelled(SERVICE, KEY)
        cache.hides = False
        assert (await look(observer)).service is foreign
        assert client.calls == [read] * 3, "the cache has it"

    hiding(client, test)


@pytest.mark.parametrize(
    ("spec", "status", "more", "read"),
    [
        ({}, None, {}, True),
        ({"suspend": True}, None, {}, False),
        ({}, {"conditions": [{"type": names.COMPLETE, "status": "True"}]}, {}, False),
        ({}, None, {"deletionTimestamp": "t"}, False),
        ({}, None, {"ownerReferences": []}, False),
    ],
    ids=["runs", "suspended", "ended", "its pods terminate", "its pods were orphaned"],
)
def test_own_stateful_set_without_the_label_is_read_while_its_pods_run(
    spec: Any, status: Any, more: Any, read: bool
) -> None:
    owned = pod()
    owned["metadata"] |= {"ownerReferences": [{"kind": "StatefulSet", "name": "j", "uid": "set"}]} | more
    client = client_with(owned)
    client.objects["distributedtrainingjobs", "j"] = job(status) | {"spec": spec}

    async def test(observer: Observer, cache: Hiding) -> None:
        assert (await look(observer)).stateful_set == (SET if read else None)
        assert bool(client.calls) == read

    hiding(client, test)


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


GOOD = {"uid": "u1", "phase": "Running"}


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (lambda: web.json_response(GOOD), GOOD),
        (lambda: web.json_response({"uid": "another"}), None),
        (lambda: web.json_response([1]), None),
        (lambda: web.Response(text="{"), None),
        (lambda: web.Response(text="[" * 100_000), None),
        (lambda: web.Response(status=401), None),
        (lambda: web.Response(status=302, headers={"Location": "/status"}), None),
        (lambda: web.Response(text=" " * 300_000 + '{"uid": "u1"}'), None),
    ],
)
def test_agent_status_is_accepted_only_for_this_job_within_bounds(
    answer: Callable[[], web.Response], seen: Any
) -> None:
    client = client_with(pod())
    asked = []

    async def status(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return answer()

    async def test() -> None:
        app = web.Application()
        app.router.add_get("/status", status)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        agents = AgentClient(settings(runner.addresses[0][1]), seconds=30)
        try:
            observed = await look(Observer(FakeCache(client), client, agents))  # type: ignore[arg-type]
            assert observed.agent == seen
            assert asked == ["Bearer " + status_token(agent_key("u1", settings(1)).encode())]
        finally:
            await agents.close()
            await runner.cleanup()

    asyncio.run(test())


def test_agent_status_in_several_chunks_is_read_completely() -> None:
    client = client_with(pod())
    text = json.dumps(GOOD | {"members": [{"pod": f"j-{i}"} for i in range(1000)]}).encode()

    async def test() -> None:
        async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text))
            for start in range(0, len(text), 5000):
                writer.write(text[start : start + 5000])
                await writer.drain()
                await asyncio.sleep(0.001)  # so that each chunk arrives alone
            writer.close()

        server = await asyncio.start_server(in_pieces, "127.0.0.1", 0)
        agents = AgentClient(settings(server.sockets[0].getsockname()[1]), seconds=30)
        try:
            observed = await look(Observer(FakeCache(client), client, agents))  # type: ignore[arg-type]
            assert observed.agent == json.loads(text)
        finally:
            await agents.close()
            server.close()

    asyncio.run(test())


def test_silent_agent_costs_its_deadline_and_no_error() -> None:
    client = client_with(pod())

    async def test() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        agents = AgentClient(settings(server.sockets[0].getsockname()[1]), seconds=0.2)
        try:
            async with asyncio.timeout(30):
                assert (await look(Observer(FakeCache(client), client, agents))).agent is None  # type: ignore[arg-type]
        finally:
            await agents.close()
            server.close()

    asyncio.run(test())
