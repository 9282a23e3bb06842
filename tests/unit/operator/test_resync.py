"""The resync queues all jobs at the start, and later those that have not ended, without a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from dtj_contract import names
from dtj_operator.metrics import Metrics
from dtj_operator.resync import Resync
from dtj_operator.workqueue import WorkQueue
from tests.lib.virtual_time import run
from tests.unit.operator.fakes import FakeCache, FakeClient, job

ENDED = {"phase": names.COMPLETE, "conditions": [{"type": names.COMPLETE, "status": "True"}]}


def resync(test: Callable[[Resync, WorkQueue[Any], Metrics], Any]) -> None:
    client, metrics = FakeClient(), Metrics("1")
    for name, status in (("ended", ENDED), ("new", None), ("runs", {"phase": names.RUNNING})):
        client.objects["distributedtrainingjobs", name] = job(status, name=name)
    queue: WorkQueue[Any] = WorkQueue(metrics)
    made = Resync(FakeCache(client), queue, Mock(), metrics, 100.0, uniform=lambda low, high: high)

    async def main() -> None:
        await test(made, queue, metrics)
        assert client.calls == []

    run(main())


def test_start_queues_all_jobs_and_those_that_have_ended_last() -> None:
    async def test(made: Resync, queue: WorkQueue[Any], metrics: Metrics) -> None:
        made.queue_all()
        taken = [await queue.get() for _ in range(3)]
        assert [key and key[1] for key in taken] == ["new", "runs", "ended"]
        assert metrics.registry.get_sample_value("dtj_jobs", {"phase": names.RUNNING}) == 1

    resync(test)


def test_start_takes_jobs_that_nobody_has_planned_for_before_all_others() -> None:
    client = FakeClient()
    for name, seen in (("a-known", 2), ("b-edited", 1), ("c-new", None)):
        found = job({"phase": names.RUNNING, "observedGeneration": seen} if seen else None, name=name)
        client.objects["distributedtrainingjobs", name] = found | {"metadata": found["metadata"] | {"generation": 2}}

    async def main() -> None:
        queue: WorkQueue[Any] = WorkQueue(Metrics("1"))
        Resync(FakeCache(client), queue, Mock(), Metrics("1"), 100.0).queue_all()
        assert [key and key[1] for key in [await queue.get() for _ in range(3)]] == ["b-edited", "c-new", "a-known"]

    run(main())


def test_job_that_ended_is_never_looked_at_again() -> None:
    async def test(made: Resync, queue: WorkQueue[Any], metrics: Metrics) -> None:
        made.queue_unfinished()
        taken = [await queue.get() for _ in range(2)]
        assert sorted(key[1] for key in taken if key) == ["new", "runs"]
        assert not queue._timers

    resync(test)
