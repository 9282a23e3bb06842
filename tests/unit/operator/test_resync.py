"""A resync that finds a change which no watch has reported marks the watches as stale.

A job that merely changed again is no reason to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from dtj_operator.kube.observer import Observer
from dtj_operator.metrics import Metrics
from dtj_operator.resync import Resync
from dtj_operator.watches import WatchState
from dtj_operator.workqueue import WorkQueue
from tests.unit.operator.fakes import FakeClient, job

JOB = ("distributedtrainingjobs", "j")


def deleted(client: FakeClient, watches: WatchState) -> None:
    del client.objects[JOB]
    watches.on_job_event("ADDED", job())  # kopf's first list came later than ours
    watches.on_job_event("DELETED", job())


def changed(client: FakeClient, watches: WatchState) -> None:
    client.objects[JOB] = job(generation=2)
    watches.on_job_event("MODIFIED", job(generation=2))


def reported(client: FakeClient, watches: WatchState) -> None:
    watches.on_job_event(None, job())


def silent(client: FakeClient, watches: WatchState) -> None:
    """Changes nothing, and no event arrives."""


@pytest.mark.parametrize(("happens", "missed"), [(deleted, 0), (changed, 0), (reported, 0), (silent, 1)])
def test_watches_are_stale_after_an_unreported_and_unchanged_job(
    happens: Callable[[FakeClient, WatchState], None], missed: int
) -> None:
    client, metrics = FakeClient(), Metrics("1")
    client.objects[JOB] = job()
    watches = WatchState(lambda key: None, lambda plural: None)

    async def main() -> None:
        observer = Observer(client, Mock())  # type: ignore[arg-type]
        resync = Resync(client, WorkQueue(metrics), observer, watches, metrics, (), 0.02)  # type: ignore[arg-type]
        running = asyncio.ensure_future(resync.run())
        try:
            async with asyncio.timeout(60):
                while not client.calls:
                    await asyncio.sleep(0)
                happens(client, watches)
                while len(client.calls) < 3:
                    await asyncio.sleep(0.001)
        finally:
            running.cancel()

    asyncio.run(main())
    assert min(next(iter(metrics.watch_missed.collect())).samples[0].value, 1) == missed
