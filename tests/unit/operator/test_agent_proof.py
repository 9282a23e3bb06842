"""Requests to agents of any key, clock and version get through, and a token opens nothing else than its request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from dtj_contract.operator_message import HEADER
from dtj_contract.status_token import CLOCK_HEADER, LIFE_SECONDS, bearer_is_valid, lasting_token, status_token
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.model import Settings
from dtj_operator.agent_client import AgentClient
from dtj_operator.agent_proof import MOST_CLOCK_SECONDS, MOST_TRIES, Proof, next_proof
from tests.unit.operator.fakes import job

OLD = Settings(agent_image="i", master_key=b"o" * 32)
NEW = Settings(agent_image="i", master_key=b"n" * 32, previous_master_key=b"o" * 32)
SECRET = b"k" * 64
NOW = 1_790_000_000.0


class Agent:
    """An agent with a master key, a clock, and tokens of its version."""

    def __init__(self, settings: Settings, ahead: float = 0.0, lasting: bool = False) -> None:
        self.key = agent_key("u1", settings).encode()
        self.ahead = ahead
        self.lasting = lasting
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        shown, message, now = request.headers["Authorization"], request.headers[HEADER], time.time() + self.ahead
        if self.lasting:
            if shown != "Bearer " + lasting_token(self.key):
                return web.Response(status=401)
        elif not bearer_is_valid(self.key, shown, now, message):
            return web.Response(status=401, headers={CLOCK_HEADER: f"{now:.0f}"})
        return web.json_response({"uid": "u1", "version": 1})


def ask(agent: Agent, times: int, between: Callable[[int], None] = lambda number: None) -> list[Any]:
    """Returns the answers to one question after the other; `between` is called before each."""

    async def main() -> list[Any]:
        server = web.Application()
        server.router.add_get("/status", agent.answer)
        runner = web.AppRunner(server)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        agents = AgentClient(replace(NEW, agent_port=runner.addresses[0][1]), seconds=30)
        pod = {"metadata": {"name": "j-0"}, "status": {"podIP": "127.0.0.1"}}
        found = []
        try:
            for number in range(times):
                between(number)
                found.append(await agents.search(job(), [pod], "{}"))
            return found
        finally:
            await agents.close()
            await runner.cleanup()

    return asyncio.run(main())


@pytest.mark.parametrize("settings", [NEW, OLD], ids=["key", "previous key"])
@pytest.mark.parametrize("ahead", [0.0, LIFE_SECONDS * 0.9, 7200.0, -7200.0])
@pytest.mark.parametrize("lasting", [False, True], ids=["of this version", "older"])
def test_agent_of_any_kind_is_heard_and_then_asked_once(settings: Settings, ahead: float, lasting: bool) -> None:
    agent = Agent(settings, ahead, lasting)
    assert all(ask(agent, 3))
    assert agent.asked <= MOST_TRIES + 2, "the way that worked is kept"


def test_clock_that_is_set_and_agent_that_is_replaced_are_found_again() -> None:
    agent = Agent(NEW, ahead=7200.0)

    def change(number: int) -> None:
        if number == 1:
            agent.ahead = 0.0
        if number == 2:
            agent.key = agent_key("u1", OLD).encode()
        if number == 3:
            agent.lasting = True

    assert all(ask(agent, 4, change))


def test_agent_of_another_job_is_refused_after_few_requests() -> None:
    agent = Agent(NEW)
    agent.key = b"x" * 64
    assert ask(agent, 1) == [None]
    assert agent.asked <= MOST_TRIES


@pytest.mark.parametrize("ahead", [MOST_CLOCK_SECONDS + 10, -MOST_CLOCK_SECONDS - 10, 1e11])
def test_time_of_another_day_is_never_signed(ahead: float) -> None:
    refused = Proof()
    assert next_proof(refused, NOW + ahead, NOW, {refused}, has_previous_key=False) is None


def test_token_expires_and_opens_only_its_request() -> None:
    shown = "Bearer " + status_token(SECRET, NOW, "{}")
    for late in (-LIFE_SECONDS, 0, LIFE_SECONDS):
        assert bearer_is_valid(SECRET, shown, NOW + late, "{}")
    for late in (-LIFE_SECONDS - 1, LIFE_SECONDS + 1, 3600):
        assert not bearer_is_valid(SECRET, shown, NOW + late, "{}")
    assert not bearer_is_valid(SECRET, shown, NOW, '{"size": {"generation": 9, "replicas": 1}}')
    assert not bearer_is_valid(b"x" * 64, shown, NOW, "{}")
    assert not bearer_is_valid(SECRET, "Bearer " + lasting_token(SECRET), NOW, "{}"), "the token that lasts is gone"
    later = shown.replace("1790000000", "1790000500")
    assert not bearer_is_valid(SECRET, later, NOW + 500, "{}"), "the time is covered by the MAC"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer .", "Bearer -1.a", "Bearer \u0661.a", f"Bearer {'9' * 5000}.a", "Basic 1790000000.a"],
)
def test_malformed_header_is_refused(header: str) -> None:
    assert not bearer_is_valid(SECRET, header, NOW)
