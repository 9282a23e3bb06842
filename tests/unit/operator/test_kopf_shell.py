"""kopf as the shell: how it is set up, and in which order it starts and stops the operator."""

from __future__ import annotations

import asyncio

import kopf
import pytest

from dtj_operator.errors import ShellEnded
from dtj_operator.kopf_shell import Backoffs, kopf_settings, registry, run


class Login:
    async def kopf_connection(self) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server="http://127.0.0.1:1")


def test_kopf_settings_disable_events_and_scanning_and_back_off_endlessly() -> None:
    used = kopf_settings()
    assert not used.posting.enabled
    assert used.scanning.disabled
    tries = Backoffs()
    for _ in range(2):  # iterated again at the next outage
        again = iter(tries)
        assert [next(again) for _ in range(8)] == [1, 2, 4, 8, 15, 30, 30, 30]


def test_kopf_starts_and_stops_the_operator_without_an_api_server() -> None:
    order: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()

        async def on_start() -> None:
            order.append("start")
            asyncio.get_running_loop().call_soon(stop.set)

        async def on_stop() -> None:
            order.append("stop")

        async with asyncio.timeout(60):
            await run(
                Login(),  # type: ignore[arg-type]
                ["ns"],
                stop,
                on_start=on_start,
                on_stop=on_stop,
                started=lambda: order.append("signals"),
            )

    asyncio.run(main())
    assert sorted(order) == ["signals", "start", "stop"]
    assert order[-1] == "stop"


@pytest.mark.filterwarnings("ignore:coroutine 'authenticator' was never awaited")
def test_end_of_kopf_ends_the_operator() -> None:
    async def fails() -> None:
        raise kopf.PermanentError("no")

    async def nothing() -> None:
        """Returns at once."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await run(
                Login(),  # type: ignore[arg-type]
                [],
                asyncio.Event(),
                on_start=fails,
                on_stop=nothing,
                started=lambda: None,
            )

    with pytest.raises(ShellEnded, match="kopf ended unexpectedly"):
        asyncio.run(main())


def test_kopf_watches_no_object() -> None:
    async def nothing() -> None:
        """Returns at once."""

    ours = registry(Login(), nothing, nothing)  # type: ignore[arg-type]
    assert not ours._watching.get_all_selectors()
