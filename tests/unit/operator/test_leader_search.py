"""Polls of a group that any agent may lead: who is asked, in which order, and whose answer counts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from dtj_core.plan.leader_search import LeaderSearch
from dtj_operator.agent_client import AgentClient
from tests.unit.operator.fakes import job
from tests.unit.operator.test_observer import Clock, pod, settings

Pages = dict[int, Any]
SILENT = None


def page(ordinal: int, leader: int | None, *, phase: str = "Running", epoch: int = 1, attempt: int = 1) -> Any:
    known = None if leader is None else {"ordinal": leader, "pod": f"j-{leader}", "address": "6.6.6.6", "epoch": epoch}
    return {"uid": "u1", "ordinal": ordinal, "leader": known, "phase": phase, "attempt": attempt}


def old(ordinal: int, attempt: int = 1) -> Any:
    return {"uid": "u1", "ordinal": ordinal, "phase": "Running", "attempt": attempt}


def searched(pages: Pages, *, hint: str = "", silent: dict[str, float] | None = None) -> tuple[list[int], int | None]:
    """Returns the ordinals that are asked, in order, and the ordinal whose page is used."""
    search = LeaderSearch([pod(n) for n in pages], hint, silent or {})
    asked = []
    while (found := search.next()) is not None:
        number = int(found["metadata"]["name"].rpartition("-")[2])
        asked.append(number)
        if pages[number] is not SILENT:
            search.add(found, pages[number])
    best = search.best()
    return asked, None if best is None else best.page["ordinal"]


CASES: dict[str, tuple[Pages, str, list[int], int | None]] = {
    "the lowest leads": ({0: page(0, 0), 1: page(1, 0)}, "", [0], 0),
    "another leads": ({0: page(0, 2), 1: page(1, 2), 2: page(2, 2)}, "", [0, 2], 2),
    "the hint is right": ({0: page(0, 2), 1: page(1, 2), 2: page(2, 2)}, "j-2", [2], 2),
    "the hint is outdated": ({0: page(0, 0), 1: page(1, 0)}, "j-1", [1, 0], 0),
    "the hint is gone": ({0: page(0, 0), 1: page(1, 0)}, "j-7", [0], 0),
    "the hint is silent": ({0: page(0, 1), 1: page(1, 1), 2: SILENT}, "j-2", [2, 0, 1], 1),
    "the leader is silent": ({0: page(0, 2), 1: page(1, 2), 2: SILENT}, "", [0, 2, 1], 0),
    "nobody answers": ({0: SILENT, 1: SILENT, 2: SILENT}, "", [0, 1], None),
    "nobody leads": ({0: page(0, None), 1: page(1, None, attempt=4), 2: page(2, None)}, "", [0, 1], 1),
    "one does not know yet": ({0: page(0, None), 1: page(1, 2), 2: page(2, 2)}, "", [0, 1, 2], 2),
    "an older leader lives on": (
        {0: page(0, 0, phase="Rendezvous", epoch=3), 1: page(1, 2, epoch=5), 2: page(2, 2, epoch=5)},
        "j-0", [0, 1, 2], 2,
    ),
    "a leader that waits stays the one": (
        {0: page(0, 0, phase="Rendezvous"), 1: page(1, 0)}, "", [0, 1], 0,
    ),
    "older agents": ({0: old(0), 1: old(1)}, "", [0], 0),
    "an older agent that does not coordinate": ({0: old(0), 1: old(1)}, "j-1", [1, 0], 0),
    "a leader of another job's name": (
        {0: page(0, 0) | {"leader": {"ordinal": 1, "pod": "k-1", "epoch": 1}}, 1: page(1, 1)}, "", [0, 1], 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_leader_is_found_with_one_redirect_and_one_fallback(case: str) -> None:
    pages, hint, asked, used = CASES[case]
    assert searched(pages, hint=hint) == (asked, used)


def test_pod_that_was_silent_is_asked_after_all_others() -> None:
    pages = {0: SILENT, 1: SILENT, 2: page(2, 2), 3: page(3, 2)}
    assert searched(pages, silent={"j-0": 5.0, "j-1": 4.0}) == ([2], 2)
    assert searched({0: SILENT, 1: SILENT}, silent={"j-0": 5.0, "j-1": 4.0}) == ([1, 0], None)


async def found(agents: AgentClient, of: Any, pods: list[Any]) -> Any:
    """Returns the page that a search uses; None without an answer."""
    answer = await agents.search(of, pods, "{}")
    return None if answer is None else answer.page


def group(pages: Pages, test: Callable[[AgentClient, Clock, Counter[int], list[Any]], Awaitable[None]]) -> None:
    """Runs `test` with an agent for each page, on an address of its own."""
    asked: Counter[int] = Counter()

    async def answer(request: web.Request) -> web.Response:
        number = int((request.host.partition(":")[0]).rpartition(".")[2]) - 1
        asked[number] += 1
        if pages[number] is SILENT:
            return web.Response(status=503)
        return web.json_response(pages[number])

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/status", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        clock = Clock()
        agents = AgentClient(settings(runner.addresses[0][1]), seconds=30, now=clock)
        try:
            await test(agents, clock, asked, [pod(number, ip=f"127.0.0.{number + 1}") for number in pages])
        finally:
            await agents.close()
            await runner.cleanup()

    asyncio.run(main())


def test_leader_is_asked_alone_after_it_was_found() -> None:
    pages: Pages = {0: page(0, 2), 1: page(1, 2), 2: page(2, 2)}

    async def test(agents: AgentClient, clock: Clock, asked: Counter[int], pods: list[Any]) -> None:
        for clock.now in range(0, 20, 2):
            assert await found(agents, job(), pods) == pages[2]
        assert asked == {0: 1, 2: 10}
        pages[2], pages[0], pages[1] = SILENT, page(0, 1), page(1, 1)
        for clock.now in range(20, 40, 2):
            assert await found(agents, job(), pods) == pages[1]
            assert agents.silent_seconds(job()) == 0
        assert asked == {0: 2, 2: 11, 1: 10}

    group(pages, test)


def test_leader_in_the_stored_status_is_asked_first() -> None:
    pages: Pages = {0: page(0, 2), 1: page(1, 2), 2: page(2, 2)}

    async def test(agents: AgentClient, clock: Clock, asked: Counter[int], pods: list[Any]) -> None:
        assert await found(agents, job({"coordinator": "j-2"}), pods) == pages[2]
        assert asked == {2: 1}

    group(pages, test)


def test_silent_leader_costs_one_request_now_and_then() -> None:
    """The other agents answer, so the job is not silent; what they know is used meanwhile."""
    pages: Pages = {0: page(0, 1), 1: SILENT}

    async def test(agents: AgentClient, clock: Clock, asked: Counter[int], pods: list[Any]) -> None:
        for clock.now in range(0, 600, 2):
            assert await found(agents, job(), pods) == pages[0]
        assert agents.silent_seconds(job()) == 0
        assert 5 <= asked[1] <= 30
        pages[1] = page(1, 1)
        clock.now = 700
        assert await found(agents, job(), pods) == pages[1]

    group(pages, test)


def test_silence_counts_only_while_nobody_answers() -> None:
    pages: Pages = {0: SILENT, 1: SILENT, 2: SILENT, 3: page(3, 3)}

    async def test(agents: AgentClient, clock: Clock, asked: Counter[int], pods: list[Any]) -> None:
        assert await found(agents, job(), pods) is None
        clock.now = 3
        assert agents.silent_seconds(job()) == 3
        assert await found(agents, job(), pods) == pages[3], "the pods that were not asked before come first"
        assert agents.silent_seconds(job()) == 0

    group(pages, test)


def test_leader_that_no_time_is_left_for_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_slowly(self: AgentClient, job: Any, pod: Any, *_: Any) -> Any:
        if pod["metadata"]["name"] == "j-1":
            await asyncio.sleep(0)
            return page(1, 1)
        time.sleep(0.02)  # another job keeps the event loop
        return page(0, 1)

    async def main() -> None:
        monkeypatch.setattr(AgentClient, "_ask_with_any_proof", ask_slowly)
        agents = AgentClient(settings(1), seconds=0.01)
        try:
            assert await found(agents, job(), [pod(0), pod(1)]) == page(0, 1)
            assert agents._jobs[("ns", "j")].silent == {}
        finally:
            await agents.close()

    asyncio.run(main())


def test_leader_that_hangs_leaves_time_for_the_others() -> None:
    """All requests of a poll share its time, so a silent pod delays no reconcile."""

    async def main() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def answer(request: web.Request) -> web.Response:
            return web.json_response(page(1, 0))

        app = web.Application()
        app.router.add_get("/status", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.2", 0).start()
        port = runner.addresses[0][1]
        # Not 127.0.0.1, where another process may have this port.
        server = await asyncio.start_server(hang, "127.0.0.3", port)
        agents = AgentClient(settings(port), seconds=10)
        try:
            async with asyncio.timeout(60):
                pods = [pod(0, ip="127.0.0.3"), pod(1, ip="127.0.0.2")]
                assert await found(agents, job(), pods) == page(1, 0)
                assert agents.silent_seconds(job()) == 0
        finally:
            await agents.close()
            server.close()
            await runner.cleanup()

    asyncio.run(main())
