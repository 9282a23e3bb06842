"""kopf as the shell: it starts, logs in, and stops the operator in order.

kopf watches nothing here. Its watches keep ghosts after a re-list, show no bookmarks, and run a
task for every object; dtj_operator.kube.cache does better with less (docs/decisions/0019-cache.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import kopf

from dtj_operator.errors import ShellEnded
from dtj_operator.kube.login import Login

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 10.0

Handler = Callable[[], Awaitable[None]]


class Backoffs:
    """The seconds between kopf's retries: an endless sequence that can be iterated repeatedly.

    When kopf's own list is exhausted, kopf ends the process, so a long outage of the API server
    would become a crash loop.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 8.0, 15.0)
        while True:
            yield 30.0


def registry(login: Login, start: Handler, stop: Handler) -> kopf.OperatorRegistry:
    """Returns our handlers on a registry of their own: kopf's global registry stays empty."""
    ours = kopf.OperatorRegistry()

    @kopf.on.startup(registry=ours)
    async def start_up(**_: Any) -> None:
        await start()

    @kopf.on.login(registry=ours)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login.kopf_connection()

    @kopf.on.cleanup(registry=ours)
    async def clean_up(**_: Any) -> None:
        await stop()

    return ours


def kopf_settings() -> kopf.OperatorSettings:
    """Returns kopf's settings, changed where its defaults do not fit."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Scanning would need rights on CRDs and namespaces. The operator waits for its CRD at the
    # start.
    settings.scanning.disabled = True
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = Backoffs()
    settings.process.ultimate_exiting_timeout = None
    return settings


async def run(
    login: Login,
    namespaces: Sequence[str],
    stop: asyncio.Event,
    *,
    on_start: Handler,
    on_stop: Handler,
    started: Callable[[], None],
) -> None:
    """Runs kopf until `stop` is set. Calls `started` once kopf has taken the signals.

    Raises ShellEnded if kopf ends before `stop` is set.
    """
    before = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry(login, on_start, on_stop),
        settings=kopf_settings(),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        standalone=True,
        stop_flag=stop,
    )
    started()
    try:
        await kopf.run_tasks(tasks, ignored=before)
    except Exception as error:
        # The operator must end, so that the kubelet restarts it.
        raise ShellEnded(f"kopf ended unexpectedly: {error!r}") from error
    if not stop.is_set():
        raise ShellEnded("kopf ended unexpectedly")
