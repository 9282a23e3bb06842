"""The outcomes of a reconcile: done, requeued, gone, rejected, failed, and a bug.

No bug may stay hidden or affect other jobs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan.model import Apply, Object, Observed, Plan, Settings
from dtj_operator import errors
from dtj_operator.controller import MANY_PODS, Controller
from dtj_operator.kube.cache.store import Key
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.observer import Observer
from dtj_operator.metrics import Metrics
from dtj_operator.workqueue import WorkQueue
from tests.lib.waiting import wait_until_async
from tests.unit.operator.fakes import FakeCache, FakeClient, FakeListeners, job
from tests.unit.operator.test_executor import SET, Recorded

SETTINGS = Settings(agent_image="i", master_key=b"k" * 32)
KEY = ("ns", "j")


class Shell:
    """A controller on a fake client, and its queue."""

    def __init__(self, client: FakeClient, planner: Callable[[Object, Observed, float, Settings], Plan]) -> None:
        self.metrics = Metrics("1")
        self.queue: WorkQueue[Key] = WorkQueue(self.metrics, first_backoff=0.01)
        cache = FakeCache(client)
        observer = Observer(cache, client, FakeListeners())  # type: ignore[arg-type]
        executor = PlanExecutor(client, cache, observer, Recorded(client))  # type: ignore[arg-type]
        self.controller = Controller(self.queue, observer, executor, planner, SETTINGS, self.metrics, now=lambda: 7.0)

    def results(self) -> dict[str, float]:
        samples = next(iter(self.metrics.reconcile.collect())).samples
        return {s.labels["result"]: s.value for s in samples if s.value}

    async def until(self, done: Callable[[], bool], *keys: Key) -> None:
        """Works on these keys until `done`."""
        for key in keys or (KEY,):
            self.queue.add(key)
        worker = asyncio.ensure_future(self.controller.work())
        try:
            await wait_until_async("the work", done, every=0.001)
        finally:
            self.queue.close()
            await worker


def client_with(*jobs: Any) -> FakeClient:
    client = FakeClient()
    for each in jobs or (job(),):
        client.objects["distributedtrainingjobs", each["metadata"]["name"]] = each
    return client


def test_planner_gets_observation_and_time_and_its_plan_is_executed() -> None:
    client, seen = client_with(), []

    def planner(obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
        seen.append((obj["metadata"]["name"], observed.stateful_set, now, settings))
        return Plan(actions=(Apply(body=SET),), status={"phase": "Pending"})

    async def main() -> None:
        shell = Shell(client, planner)
        await shell.until(lambda: bool(shell.results()))
        assert shell.results() == {"success": 1}

    asyncio.run(main())
    assert seen == [("j", None, 7.0, SETTINGS)]
    assert client.calls[-1] == ("apply", "distributedtrainingjobs/status", "j")


def test_plan_with_0_seconds_is_requeued_at_once() -> None:
    client = client_with()

    async def main() -> None:
        shell = Shell(client, lambda *_: Plan(requeue_after=0))
        await shell.until(lambda: shell.results().get("requeue", 0) >= 3)

    asyncio.run(main())


@pytest.mark.parametrize("there", [[], [job(deletionTimestamp="now")]])
def test_deleted_or_terminating_job_is_left_alone(there: list[Any]) -> None:
    client = client_with(*there) if there else FakeClient()

    async def main() -> None:
        shell = Shell(client, lambda *_: pytest.fail("nothing to plan"))
        await shell.until(lambda: bool(shell.results()))
        assert shell.results() == {"gone": 1}

    asyncio.run(main())
    assert client.calls == []


def test_invalid_child_is_planned_again_at_once_with_the_servers_message() -> None:
    client = client_with()
    client.refuse["apply", "statefulsets", "j"] = errors.Invalid('StatefulSet "j" is invalid: spec', status=422)
    observed_rejections = []

    def planner(obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
        observed_rejections.append(observed.rejection)
        return Plan(status={"phase": "Failed"}) if observed.rejection else Plan(actions=(Apply(body=SET),))

    async def main() -> None:
        shell = Shell(client, planner)
        await shell.until(lambda: bool(shell.results()))
        assert shell.results() == {"requeue": 1}

    asyncio.run(main())
    assert observed_rejections == [None, 'StatefulSet "j" is invalid: spec']
    assert client.bodies[-1]["status"] == {"phase": "Failed"}


def test_temporary_rejection_is_reported_each_time_and_retried_with_back_off() -> None:
    client = client_with()
    client.refuse["apply", "statefulsets", "j"] = errors.Forbidden("exceeded quota: q", status=403)
    observed_rejections: list[str | None] = []

    def planner(obj: Object, observed: Observed, now: float, settings: Settings) -> Plan:
        observed_rejections.append(observed.refusal)
        return Plan(actions=() if observed.refusal else (Apply(body=SET),), requeue_after=0)

    async def main() -> None:
        shell = Shell(client, planner)
        await shell.until(lambda: shell.results().get("requeue", 0) >= 20)
        assert shell.results().keys() == {"requeue"}, "no error: the cause is known"

    asyncio.run(main())
    tries = client.calls.count(("apply", "statefulsets", "j"))
    assert (observed_rejections[0], tries) == (None, 1), "20 reconciles within a second try the API server once"
    assert set(observed_rejections[1:]) == {"exceeded quota: q"}


def test_error_is_one_log_line_and_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    client = client_with()
    client.refuse["apply", "distributedtrainingjobs/status", "j"] = errors.Transient("no answer in 10 s")

    async def main() -> None:
        shell = Shell(client, lambda *_: Plan(status={"phase": "Pending"}))

        def healed() -> bool:
            if shell.results().get("error", 0) >= 2:
                client.refuse.clear()
            return "success" in shell.results()

        await shell.until(healed)
        assert shell.queue.add_rate_limited(KEY) == 0.01, "a success ends the back-off"

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    lines = [r for r in caplog.records if "no answer in 10 s" in r.getMessage()]
    assert len(lines) >= 2
    assert all(record.exc_info is None for record in lines)


def test_bug_is_logged_with_one_traceback_and_stops_no_other_job(caplog: pytest.LogCaptureFixture) -> None:
    client = client_with(job(), job(name="k"))

    def planner(obj: Object, *_: Any) -> Plan:
        if obj["metadata"]["name"] == "j":
            raise ZeroDivisionError("the planner's mistake")
        return Plan()

    async def main() -> None:
        shell = Shell(client, planner)
        await shell.until(lambda: shell.results().get("bug", 0) >= 3, KEY, ("ns", "k"))
        assert shell.results()["success"] == 1

    asyncio.run(main())
    lines = [record for record in caplog.records if "the planner's mistake" in record.getMessage()]
    assert [bool(record.exc_info) for record in lines[:3]] == [True, False, False]


def test_plan_of_a_job_with_very_many_pods_does_not_block_the_event_loop() -> None:
    client, ran = client_with(), threading.Event()
    labels = {names.LABEL_MANAGED_BY: names.MANAGER, names.LABEL_JOB: "j"}
    for name in (f"j-{number}" for number in range(MANY_PODS + 1)):
        client.objects["pods", name] = {"metadata": {"namespace": "ns", "name": name, "labels": labels}}

    def planner(*_: Any) -> Plan:
        return Plan(status={"phase": "Running" if ran.wait(60) else "Pending"})

    async def main() -> None:
        shell = Shell(client, planner)
        reconciled = asyncio.ensure_future(shell.controller.reconcile(KEY))
        await asyncio.sleep(0)
        ran.set()  # the planner waits for it
        await reconciled

    asyncio.run(main())
    assert client.bodies[-1]["status"] == {"phase": "Running"}
