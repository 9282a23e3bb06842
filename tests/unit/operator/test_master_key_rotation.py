"""A replaced master key takes effect.

Agents of jobs that were started with the previous key are still polled with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from dtj_contract.operator_message import HEADER
from dtj_contract.status_token import CLOCK_HEADER, bearer_is_valid
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.model import Settings
from dtj_operator import app, settings
from dtj_operator.agent_client import AgentClient
from tests.unit.operator.fakes import job

OLD = Settings(agent_image="i", master_key=b"o" * 32)
NEW = Settings(agent_image="i", master_key=b"n" * 32, previous_master_key=b"o" * 32)


@pytest.mark.parametrize(("has", "asked"), [(OLD, 2), (NEW, 1)], ids=["started before", "started after"])
def test_agent_is_polled_with_the_key_it_was_started_with(has: Settings, asked: int) -> None:
    questions = []

    async def answer(request: web.Request) -> web.Response:
        questions.append(request.headers["Authorization"])
        if not bearer_is_valid(agent_key("u1", has).encode(), questions[-1], time.time(), request.headers[HEADER]):
            return web.Response(status=401, headers={CLOCK_HEADER: f"{time.time():.0f}"})
        return web.json_response({"uid": "u1", "version": 1})

    async def main() -> list[Any]:
        server = web.Application()
        server.router.add_get("/status", answer)
        runner = web.AppRunner(server)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        agents = AgentClient(replace(NEW, agent_port=port), seconds=30)
        pod = {"metadata": {"name": "j-0"}, "status": {"podIP": "127.0.0.1"}}
        try:
            answers = [await agents.search(job(), [pod], "{}") for _ in range(4)]
            assert agents.with_previous_key() == (1 if has is OLD else 0)
            return answers
        finally:
            await agents.close()
            await runner.cleanup()

    answers = asyncio.run(main())
    assert all(answers)
    assert len(questions) == 3 + asked, "later polls use the key that the agent knows"


def test_replaced_master_key_stops_the_operator_and_an_invalid_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "KEY_SECONDS", 0.001)
    key, previous = tmp_path / "key", tmp_path / "previous"
    key.write_bytes(b"o" * 32)
    flags = ["--agent-image=i", f"--master-key-file={key}", f"--previous-master-key-file={previous}"]
    options = settings.parse(flags, environ={})
    assert options.settings.previous_master_key is None
    operator: Any = SimpleNamespace(options=options, stop=asyncio.Event())

    async def main() -> None:
        async with asyncio.timeout(60):
            watching = asyncio.create_task(app.Operator._watch_keys(operator))
            key.write_bytes(b"short")
            while "an invalid key" not in caplog.text:
                await asyncio.sleep(0.001)
            assert not operator.stop.is_set()
            previous.write_bytes(b"o" * 32)
            key.write_bytes(b"n" * 32)
            await watching

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert operator.stop.is_set()
    assert caplog.text.count("an invalid key") == 1, "logged once"
    assert settings.parse(flags, environ={}).settings == replace(
        options.settings, master_key=b"n" * 32, previous_master_key=b"o" * 32
    )
