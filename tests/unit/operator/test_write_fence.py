"""A process that does not lead sends no write, and its plans draw no conclusion from that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from dtj_core.plan.model import Apply, Plan
from dtj_operator import errors
from dtj_operator.kube.client import Client
from dtj_operator.kube.leases import LeaseClient
from dtj_operator.kube.resources import JOB, LEASE, SERVICE
from tests.unit.operator.fakes import job
from tests.unit.operator.test_controller import Shell, client_with
from tests.unit.operator.test_executor import SERVICE as CHILD

BODY = {"metadata": {"name": "j", "namespace": "ns", "resourceVersion": "1"}}


class Fence:
    """Lets `open` calls pass, and counts all."""

    def __init__(self, opened: int) -> None:
        self.opened = opened
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls > self.opened:
            raise errors.NotLeader("not the leader")


def serve(fence: Fence, calls: Callable[[Client, LeaseClient], Awaitable[None]]) -> list[str]:
    """Returns the requests that reach a server when `calls` runs with two clients of one login."""
    received: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(f"{request.method} {request.path}")
        return web.json_response(BODY)

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        login = Mock(configuration=Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
        leases = LeaseClient(login, Mock())
        client = Client(login, Mock(), fence=fence)
        try:
            await calls(client, leases)
        finally:
            await client.close()
            await leases.close()
            await runner.cleanup()

    asyncio.run(main())
    return received


WRITES: dict[str, Callable[[Client], Awaitable[object]]] = {
    "create": lambda client: client.create(SERVICE, "ns", BODY),
    "apply": lambda client: client.apply(SERVICE, "ns", BODY),
    "status": lambda client: client.apply(JOB, "ns", BODY, subresource="status"),
    "merge": lambda client: client.merge(SERVICE, "ns", "j", {}),
    "delete": lambda client: client.delete(SERVICE, "ns", "j", uid="u"),
}


@pytest.mark.parametrize("write", WRITES)
def test_closed_fence_sends_no_write_and_every_read(write: str) -> None:
    async def calls(client: Client, _: LeaseClient) -> None:
        await client.get(JOB, "ns", "j")
        with pytest.raises(errors.NotLeader):
            await WRITES[write](client)

    assert serve(Fence(0), calls) == ["GET /apis/training.dtj.dev/v1alpha1/namespaces/ns/distributedtrainingjobs/j"]


@pytest.mark.parametrize("write", WRITES)
def test_fence_that_closes_while_a_connection_is_made_sends_no_write(write: str) -> None:
    async def calls(client: Client, _: LeaseClient) -> None:
        with pytest.raises(errors.NotLeader):
            await WRITES[write](client)

    assert serve(Fence(1), calls) == []


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("opened", [2, 4])
def test_fence_that_closes_before_the_bytes_leave_sends_no_write(write: str, opened: int) -> None:
    """The first write asks the fence three times, and the second two times, as it has a connection."""

    async def calls(client: Client, _: LeaseClient) -> None:
        if opened == 4:
            await client.create(SERVICE, "ns", BODY)
        with pytest.raises(errors.NotLeader):
            await WRITES[write](client)

    assert serve(Fence(opened), calls) == ["POST /api/v1/namespaces/ns/services"][: opened == 4]


def test_lease_is_written_whatever_the_fence_of_the_other_client() -> None:
    async def calls(_: Client, leases: LeaseClient) -> None:
        await leases.replace(BODY, 5)
        await leases.create(LEASE, "ns", BODY)

    path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
    assert serve(Fence(0), calls) == [f"PUT {path}/j", f"POST {path}"]


def test_reconcile_of_a_process_that_leads_no_more_is_no_bug_and_no_rejection() -> None:
    client = client_with(job(resourceVersion="7"))
    client.refuse["apply", "services", "j"] = errors.NotLeader("not the leader")  # type: ignore[assignment]
    seen = []

    async def main() -> None:
        shell = Shell(client, lambda job, observed, now, settings: seen.append(observed) or plan)
        await shell.until(lambda: "error" in shell.results() and len(seen) >= 2)
        assert set(shell.results()) == {"error"}

    plan = Plan(actions=(Apply(body=CHILD),), status={"phase": "Pending"})
    asyncio.run(main())
    assert not any(observed.rejection or observed.refusal for observed in seen)
    assert [call for call in client.calls if call[1] == "distributedtrainingjobs/status"] == []
