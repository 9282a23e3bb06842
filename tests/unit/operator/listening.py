"""Agents for the tests of the listeners: a server that answers for any address of the loopback network."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from dtj_contract.operator_message import HEADER
from dtj_operator.agent_client import AgentClient
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.workqueue import Priority
from tests.lib.waiting import wait_until_async
from tests.unit.operator.fakes import job
from tests.unit.operator.test_observer import pod, settings

PATIENCE = 60.0


def page(uid: str = "u1", *, ordinal: int = 0, leader: int = 0, name: str = "j", **more: Any) -> Any:
    known = {"ordinal": leader, "pod": f"{name}-{leader}", "address": "6.6.6.6", "epoch": 1}
    return {"version": 1, "uid": uid, "ordinal": ordinal, "leader": known, "phase": "Running", "attempt": 1} | more


@dataclass
class FakeAgent:
    """`page`: what it answers, None: nothing. `waits`: whether it knows how to wait."""

    page: Any
    waits: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[web.Request] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    open: int = 0
    """Requests that wait for an answer."""

    def show(self, **more: Any) -> None:
        """Changes the page in a way that matters."""
        self.page = {**self.page, **more, "statusVersion": str(int(self.page.get("statusVersion", "0")) + 1)}
        self.changed.set()

    def progress(self, step: int) -> None:
        self.page = {**self.page, "progress": {"step": step, "time": 1.0}}


class Network:
    """The agents by address, the listeners, and the keys that they have enqueued."""

    def __init__(self, client: AgentClient, **options: Any) -> None:
        self.client = client
        self.agents: dict[str, FakeAgent] = {}
        self.enqueued: Counter[tuple[str, str]] = Counter()
        self.busy = self.busiest = 0
        """Requests without an answer, now and at most, of agents that are silent."""
        self.priority: Priority | None = None
        """Of the last key."""
        self.listeners = AgentListeners(client, self._enqueue, **options)

    def _enqueue(self, key: tuple[str, str], delay: float, priority: Priority) -> None:
        self.enqueued.update([key])
        self.priority = priority

    async def answer(self, request: web.Request) -> web.StreamResponse:
        agent = self.agents[request.host.partition(":")[0]]
        agent.requests.append(request)
        agent.connections.add(request.transport)
        agent.messages.append(request.headers[HEADER])
        if agent.page is None:
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            try:
                await asyncio.sleep(10 * PATIENCE)
            finally:
                self.busy -= 1
        if not agent.waits:
            return web.json_response(agent.page, headers={"Connection": "close"})
        wait, after = float(request.query["wait"]), request.query["after"]
        agent.open += 1
        try:
            async with asyncio.timeout(wait):
                while agent.page.get("statusVersion") == after:
                    agent.changed.clear()
                    await agent.changed.wait()
        except TimeoutError:
            pass
        finally:
            agent.open -= 1
        return web.json_response(agent.page)

    def add(self, address: str, shown: Any, *, waits: bool = True) -> FakeAgent:
        version = {"statusVersion": "1"} if shown is not None and waits else {}
        agent = self.agents[address] = FakeAgent(None if shown is None else shown | version, waits)
        return agent

    def observe(self, *addresses: str, of: Any = None, name: str = "j", pods: list[Any] | None = None) -> Any:
        """Observes a job with pods at these addresses, as a reconcile does."""
        found = of or job(name=name)
        children = pods if pods is not None else [named(pod(n, ip), name) for n, ip in enumerate(addresses)]
        owner = {"metadata": {"name": name, "uid": "set", "ownerReferences": [{"uid": found["metadata"]["uid"]}]}}
        return self.listeners.observe(found, owner, children)

    async def until(self, what: str, true: Callable[[], object]) -> None:
        await wait_until_async(what, lambda: bool(true()), timeout=PATIENCE, every=0.005)

    async def until_heard(self, *addresses: str, **more: Any) -> Any:
        await self.until("an answer", lambda: self.observe(*addresses, **more).page is not None)
        return self.observe(*addresses, **more).page


def named(found: Any, name: str) -> Any:
    found["metadata"]["name"] = f"{name}-{found['metadata']['name'].rpartition('-')[2]}"
    return found


def listening(test: Callable[[Network], Awaitable[None]], *, seconds: float = 10.0, **options: Any) -> None:
    """Runs `test` with listeners that have started. `seconds`: the deadline of a search."""

    async def main() -> None:
        app = web.Application()
        networks: list[Network] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            return await networks[0].answer(request)

        app.router.add_get("/status", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        client = AgentClient(settings(runner.addresses[0][1]), seconds=seconds)
        networks.append(Network(client, **options))
        await networks[0].listeners.start()
        try:
            async with asyncio.timeout(3 * PATIENCE):
                await test(networks[0])
        finally:
            await networks[0].listeners.stop()
            await client.close()
            await runner.cleanup()

    asyncio.run(main())
