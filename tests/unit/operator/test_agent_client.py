"""Requests to agents: which answers count, what a silence is, and that it is logged once."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from dtj_contract.operator_message import HEADER
from dtj_contract.status_token import CLOCK_HEADER, bearer_is_valid
from dtj_core.plan.agent_keys import agent_key
from dtj_operator import agent_client
from dtj_operator.agent_client import AgentClient
from dtj_operator.metrics import Metrics
from tests.unit.operator.fakes import job
from tests.unit.operator.test_observer import Clock, pod, settings

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


REFUSED: Answer = lambda: web.Response(status=401, headers={CLOCK_HEADER: f"{time.time():.0f}"})  # noqa: E731
GOOD: Answer = lambda: web.json_response({"uid": "u1"})  # noqa: E731


async def page_of(agents: AgentClient, reachable: list[Any], **more: Any) -> Any:
    """Returns the page that a search finds; None without an answer."""
    answer = await agents.search(job(), reachable, "{}", **more)
    return None if answer is None else answer.page


def test_refused_request_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        for clock.now in range(600):
            await page_of(agents, [pod()])
        assert agents.silent_seconds(job()) == 599
        assert counts["asked"] == counts["refused"] == 600

    with caplog.at_level(logging.WARNING):
        polled([REFUSED], test)
    assert [record.getMessage() for record in caplog.records] == ["the agent of pod j-0 answered 401 to GET /status"]


def test_silence_counts_from_the_last_sign_of_life() -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        clock.now = 100
        await page_of(agents, [pod()], heard=70.0)
        clock.now = 110
        await page_of(agents, [pod()], heard=105.0)
        assert agents.silent_seconds(job()) == 40
        assert agents.silence(job()).result == "refused"  # type: ignore[union-attr]

    polled([REFUSED], test)


def test_changed_result_is_logged_and_an_answer_ends_the_silence(caplog: pytest.LogCaptureFixture) -> None:
    answer: list[Answer] = [REFUSED]

    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        await page_of(agents, [pod()])
        answer.append(lambda: web.Response(text="{"))
        clock.now = 100
        await page_of(agents, [pod()])
        answer.append(GOOD)
        clock.now = 200
        assert await page_of(agents, [pod()]) == {"uid": "u1"}
        assert agents.silent_seconds(job()) == 0
        assert counts == Counter(asked=3, refused=1, invalid=1, answered=1)

    with caplog.at_level(logging.INFO):
        polled(answer, test)
    levels = [record.levelname for record in caplog.records if record.name.endswith("agent_client")]
    assert levels == ["WARNING", "WARNING", "INFO"]


@pytest.mark.parametrize("change", ["another pod", "a restarted container", "another address"])
def test_silence_ends_with_the_agent(change: str) -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        await page_of(agents, [pod()])
        clock.now, other = 60, pod()
        agents.see(job(), [other])
        assert agents.silent_seconds(job()) == 60
        if change == "another pod":
            other["metadata"]["uid"] = "p9"
        elif change == "another address":
            other["status"]["podIP"] = "localhost"
        else:
            other["status"]["containerStatuses"][1]["state"]["running"]["startedAt"] = "2026-01-01T00:00:00Z"
        agents.see(job(), [other])
        assert agents.silent_seconds(job()) == 0

    polled([REFUSED], test)


def test_silence_is_dropped_with_its_job() -> None:
    async def test(agents: AgentClient, clock: Clock, counts: Counter[str]) -> None:
        await page_of(agents, [pod()])
        agents.keep_only([("ns", "j")])
        assert agents.silence(job()) is not None
        agents.keep_only([])
        assert agents.silence(job()) is None

    polled([REFUSED], test)


def test_every_result_is_a_series_from_the_start() -> None:
    text = Metrics("1").text().decode()
    for result in ("answered", "unreachable", "refused", "invalid"):
        assert f'dtj_agent_requests_total{{result="{result}"}} 0.0' in text


GOOD_PAGE = {"uid": "u1", "phase": "Running"}


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (lambda: web.json_response(GOOD_PAGE), GOOD_PAGE),
        (lambda: web.json_response({"uid": "another"}), None),
        (lambda: web.json_response([1]), None),
        (lambda: web.Response(text="{"), None),
        (lambda: web.Response(text="[" * 100_000), None),
        (lambda: web.Response(status=401), None),
        (lambda: web.Response(status=302, headers={"Location": "/status"}), None),
        (lambda: web.Response(text=" " * 300_000 + '{"uid": "u1"}'), None),
    ],
)
def test_page_is_accepted_only_of_this_job_within_bounds(answer: Callable[[], web.Response], seen: Any) -> None:
    asked = []

    async def status(request: web.Request) -> web.Response:
        asked.append((request.headers["Authorization"], request.headers[HEADER], request.query_string))
        return answer()

    async def test() -> None:
        app = web.Application()
        app.router.add_get("/status", status)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        agents = AgentClient(settings(runner.addresses[0][1]), seconds=30)
        try:
            assert await page_of(agents, [pod()]) == seen
            (shown, message, query), *again = asked
            assert bearer_is_valid(agent_key("u1", settings(1)).encode(), shown, time.time(), message)
            assert (message, query) == ("{}", "after=&wait=0")
            assert len(again) == (1 if seen is None and answer().status == 401 else 0), "an older agent, perhaps"
        finally:
            await agents.close()
            await runner.cleanup()

    asyncio.run(test())


def test_page_in_several_chunks_is_read_completely() -> None:
    text = json.dumps(GOOD_PAGE | {"members": [{"pod": f"j-{i}"} for i in range(1000)]}).encode()

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
            assert await page_of(agents, [pod()]) == json.loads(text)
        finally:
            await agents.close()
            server.close()

    asyncio.run(test())


@pytest.mark.parametrize("is_listening", [False, True])
def test_silent_agent_costs_a_deadline_and_no_error(is_listening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "ANSWER_MARGIN_SECONDS", 0.1)

    async def test() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        agents = AgentClient(settings(server.sockets[0].getsockname()[1]), seconds=0.2)
        try:
            async with asyncio.timeout(60):
                if not is_listening:
                    assert await page_of(agents, [pod()]) is None
                    return
                with pytest.raises(agent_client.Unanswered) as raised:
                    await agents.listen(job(), pod(), "{}", "v", 0.1)
                assert (raised.value.result, raised.value.is_late) == ("unreachable", True)
        finally:
            await agents.close()
            server.close()

    asyncio.run(test())


def test_connection_that_breaks_is_no_late_answer() -> None:
    async def test() -> None:
        async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(breaks, "127.0.0.1", 0)
        agents = AgentClient(settings(server.sockets[0].getsockname()[1]), seconds=60)
        try:
            with pytest.raises(agent_client.Unanswered) as raised:
                await agents.listen(job(), pod(), "{}", "v", 30)
            assert (raised.value.result, raised.value.is_late) == ("unreachable", False)
        finally:
            await agents.close()
            server.close()

    asyncio.run(test())
