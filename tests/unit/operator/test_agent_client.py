"""Polls of a silent agent: less and less frequent, each counted, logged once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from dtj_contract.operator_message import HEADER, LostPod, OperatorMessage, RestartBudget, decode
from dtj_operator.agent_client import AgentClient
from dtj_operator.kube.observer import Observer
from dtj_operator.metrics import Metrics
from tests.unit.operator.fakes import FakeCache, job
from tests.unit.operator.test_observer import Clock, client_with, pod, settings

Answer = Callable[[], web.Response]


def polled(answer: list[Answer], test: Callable[[AgentClient, Clock, Counter[str]], Awaitable[None]]) -> None:
    """Runs `test` with an agent whose answer is the last item of `answer`."""
    counts: Counter[str] = Counter()

    async def status(request: web.Request) -> web.Response:
        counts["asked"] += 1
        return answer[-1]()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/status", status)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        clock = Clock()
        agents = AgentClient(
            settings(runner.addresses[0][1]), seconds=30, count=lambda result: counts.update([result]), now=clock
        )
        try:
            await test(agents, clock, counts)
        finally:
            await agents.close()
            await runner.cleanup()

    asyncio.run(main())


REFUSED: Answer = lambda: web.Response(status=401)  # noqa: E731
GOOD: Answer = lambda: web.json_response({"uid": "u1"})  # noqa: E731


def test_refused_poll_is_logged_once_and_retried_with_back_off(caplog: pytest.LogCaptureFixture) -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        for second in range(600):
            clock.now = second
            await agents.status(job(), [pod()])
        assert agents.silent_seconds(job()) == 599
        assert counts["asked"] == counts["refused"]
        assert 10 <= counts["asked"] <= 25, "2 s at first, a minute at last"

    with caplog.at_level(logging.WARNING):
        polled([REFUSED], test)
    assert [record.getMessage() for record in caplog.records] == ["the agent of pod j-0 answered 401 to GET /status"]


def test_changed_result_is_logged_and_an_answer_ends_the_silence(caplog: pytest.LogCaptureFixture) -> None:
    answer: list[Answer] = [REFUSED]

    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        await agents.status(job(), [pod()])
        answer.append(lambda: web.Response(text="{"))
        clock.now = 100
        await agents.status(job(), [pod()])
        answer.append(GOOD)
        clock.now = 200
        assert await agents.status(job(), [pod()]) == {"uid": "u1"}
        assert agents.silent_seconds(job()) == 0
        assert counts == Counter(asked=3, refused=1, invalid=1, answered=1)

    with caplog.at_level(logging.INFO):
        polled(answer, test)
    levels = [record.levelname for record in caplog.records if record.name.endswith("agent_client")]
    assert levels == ["WARNING", "WARNING", "INFO"]


@pytest.mark.parametrize("change", ["another pod", "a restarted container", "another address"])
def test_possibly_new_agent_is_polled_at_once(change: str) -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        for second in range(60):
            clock.now = second
            await agents.status(job(), [pod()])
        before, other = counts["asked"], pod()
        await agents.status(job(), [pod()])
        assert counts["asked"] == before
        if change == "another pod":
            other["metadata"]["uid"] = "p9"
        elif change == "another address":
            other["status"]["podIP"] = "localhost"
        else:
            other["status"]["containerStatuses"][1]["state"]["running"]["startedAt"] = "2026-01-01T00:00:00Z"
        await agents.status(job(), [other])
        assert counts["asked"] == before + 1
        assert agents.silent_seconds(job()) == 0

    polled([REFUSED], test)


def test_silence_of_an_agent_is_observed_and_dropped_with_its_job() -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        client = client_with(pod())
        observer = Observer(FakeCache(client), client, agents)  # type: ignore[arg-type]
        for clock.now in (0, 61):
            found: Any = observer.get_job(("ns", "j"))
            seen = await observer.observe(found)
        assert (seen.agent, seen.agent_silent_seconds) == (None, 61)
        observer.keep_only([])
        assert agents.silent_seconds(job()) == 0

    polled([REFUSED], test)


def test_every_poll_result_is_a_series_from_the_start() -> None:
    text = Metrics("1").text().decode()
    for result in ("answered", "unreachable", "refused", "invalid"):
        assert f'dtj_agent_polls_total{{result="{result}"}} 0.0' in text


def test_poll_hands_the_budget_and_the_losses_over_with_the_token() -> None:
    seen: list[OperatorMessage] = []

    async def status(request: web.Request) -> web.Response:
        assert request.headers["Authorization"].startswith("Bearer ")
        seen.append(decode(request.headers[HEADER]))
        return GOOD()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/status", status)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        agents = AgentClient(settings(runner.addresses[0][1]), seconds=30)
        try:
            raised = job()
            raised["metadata"]["generation"] = 4
            raised["spec"]["restart"] = {"maxRestarts": 50}
            evicted = pod()
            evicted["metadata"]["name"] = "j-1"
            evicted["status"] |= {"podIP": "10.0.0.9", "phase": "Failed", "reason": "Evicted"}
            await agents.status(raised, [pod()], [pod(), evicted])
        finally:
            await agents.close()
            await runner.cleanup()

    asyncio.run(main())
    lost = (LostPod("j-1", "10.0.0.9", "PodEvicted", True),)
    assert seen == [OperatorMessage(RestartBudget(4, 50, 3600.0, 20), lost)]
