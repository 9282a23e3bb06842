"""Reconciling starts after the first complete lists, stops in order, and starts again with all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

from dtj_core.plan.model import Plan
from dtj_operator.reconciling import Reconciling
from dtj_operator.resync import Resync
from tests.lib.virtual_time import run
from tests.unit.operator.fakes import FakeCache, FakeListeners
from tests.unit.operator.test_controller import KEY, Shell, client_with


def reconciling(test: Callable[[Reconciling, FakeCache, Shell], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        shell = Shell(client_with(), lambda *_: Plan())
        cache = FakeCache(client_with())
        resync = Resync(cache, shell.queue, Mock(), shell.metrics, 450.0)
        listeners: Any = FakeListeners()
        made = Reconciling(cache, shell.queue, shell.controller, resync, listeners, 2)
        try:
            await test(made, cache, shell)
        finally:
            await made.stop(1.0)

    run(main())


def test_nothing_is_reconciled_before_everything_is_listed() -> None:
    async def test(made: Reconciling, cache: FakeCache, shell: Shell) -> None:
        starting = asyncio.ensure_future(made.start())
        for each in cache._reflectors:
            await asyncio.sleep(1.0)
            assert (starting.done(), shell.results()) == (False, {})
            each.listed.set()
        await starting
        await asyncio.sleep(1.0)
        assert shell.results() == {"success": 1}
        assert made.failure() is None

    reconciling(test)


def test_stop_drops_what_is_woken_and_the_next_start_queues_all_jobs() -> None:
    async def test(made: Reconciling, cache: FakeCache, shell: Shell) -> None:
        for each in cache._reflectors:
            each.listed.set()
        for number in (1, 2):
            await made.start()
            await asyncio.sleep(1.0)
            assert shell.results() == {"success": number}
            await made.stop(1.0)
            made.wake(KEY, 0.0)
            await asyncio.sleep(1.0)
            assert (shell.results(), len(shell.queue)) == ({"success": number}, 0)

    reconciling(test)


def test_reconcile_that_does_not_finish_is_cut_off() -> None:
    async def test(made: Reconciling, cache: FakeCache, shell: Shell) -> None:
        for each in cache._reflectors:
            each.listed.set()
        began = asyncio.Event()

        async def endless(*_: Any) -> Any:
            began.set()
            await asyncio.sleep(1e6)

        shell.controller.reconcile = endless  # type: ignore[method-assign]
        await made.start()
        await began.wait()
        await made.stop(3.0)
        assert shell.queue.longest_processing() == 0

    reconciling(test)
