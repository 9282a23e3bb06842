"""How soon a report is written: failures go before progress, progress comes evenly, and no page stays dropped.

The loop has a virtual clock. Listeners and queue are the real ones; an API server takes one write after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from dtj_core.plan.model import Object
from dtj_operator.agent_client import AgentClient
from dtj_operator.agent_proof import Proof
from dtj_operator.following.listener import WAIT_SECONDS
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.kube.cache.store import Key
from dtj_operator.workqueue import WorkQueue
from tests.lib.virtual_time import run
from tests.unit.operator.fakes import job
from tests.unit.operator.listening import FakeAgent, page
from tests.unit.operator.test_observer import pod, settings
from tests.unit.operator.test_workqueue import Counter

JOBS = 400
WORKERS = 8
WRITE_SECONDS = 0.01


class Client(AgentClient):
    """Asks agents of this process, which make a step each second, without a connection."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        super().__init__(settings(1), now=clock, wall=clock)
        self.agents: dict[str, FakeAgent] = {}
        self.open = 0
        """Requests that wait for an answer."""

    async def _ask(self, job: Object, pod: Object, message: str, after: str, wait: float, proof: Proof) -> Object:
        agent = self.agents[pod["status"]["podIP"]]
        self.open += 1
        try:
            await asyncio.sleep(0.001)
            async with asyncio.timeout(wait):
                while agent.page["statusVersion"] == after:
                    agent.changed.clear()
                    await agent.changed.wait()
        except TimeoutError:
            pass
        finally:
            self.open -= 1
        agent.progress(int(self.now()))
        found: Object = agent.page
        return found


class Operator:
    """Its workers write what the agents have reported, and nothing else."""

    def __init__(self, jobs: int) -> None:
        self.client = Client()
        self.queue: WorkQueue[Key] = WorkQueue(Counter())
        clock = asyncio.get_running_loop().time
        self.listeners = AgentListeners(self.client, self.queue.add_after, wall=clock, uniform=random.Random(1).uniform)
        self.api = asyncio.Lock()
        self.writes: list[tuple[float, Key, Object]] = []
        """Time, job and page."""
        self.started: dict[str, str] = {}
        """When the containers were started, if that is known."""
        for number in range(jobs):
            self.client.agents[f"10.0.0.{number}"] = FakeAgent(page(f"u{number}", name=f"j{number}", statusVersion="1"))

    def observe(self, number: int) -> Any:
        """Observes a job as a reconcile does."""
        name, uid = f"j{number}", f"u{number}"
        child = pod(0, f"10.0.0.{number}")
        child["metadata"]["name"] = f"{name}-0"
        child["status"]["containerStatuses"][1]["state"]["running"] |= self.started
        owner = {"metadata": {"name": name, "uid": "set", "ownerReferences": [{"uid": uid}]}}
        return self.listeners.observe(job(name=name, uid=uid), owner, [child])

    async def work(self) -> None:
        while (key := await self.queue.get()) is not None:
            heard = self.observe(int(key[1][1:]))
            async with self.api:
                await asyncio.sleep(WRITE_SECONDS)
                self.writes.append((self.client.now(), key, heard.page))
            self.queue.done(key)


def operating(test: Callable[[Operator], Awaitable[None]], jobs: int = JOBS) -> None:
    """Runs `test` beside an operator whose listeners have begun together, as after a restart."""

    async def main() -> None:
        operator = Operator(jobs)
        await operator.listeners.start()
        for number in range(jobs):
            operator.observe(number)
        workers = [asyncio.create_task(operator.work()) for _ in range(WORKERS)]
        try:
            await test(operator)
        finally:
            operator.queue.close()
            await asyncio.gather(*workers)
            await operator.listeners.stop()
            await operator.client.close()

    run(main())


def test_failure_is_written_before_the_progress_that_waits() -> None:
    """While the API server answers nothing, the progress of many jobs gathers."""

    async def test(operator: Operator) -> None:
        await asyncio.sleep(WAIT_SECONDS)
        async with operator.api:
            await asyncio.sleep(WAIT_SECONDS / 2)
        waiting = len(operator.queue)
        assert waiting > JOBS / 4
        failed = operator.client.now()
        key, agent = ("ns", f"j{JOBS - 1}"), operator.client.agents[f"10.0.0.{JOBS - 1}"]
        agent.show(failures=[{"attempt": 1, "rank": 0, "reason": "WorkerFailed"}])
        await asyncio.sleep(10.0)
        written = next(time for time, of, shown in operator.writes if of == key and shown["failures"])
        print(f"{waiting} jobs waited; the failure was written after {written - failed:.2f} s")
        assert written - failed <= 0.2

    operating(test)


def test_progress_of_jobs_whose_listeners_begin_together_comes_evenly() -> None:
    async def test(operator: Operator) -> None:
        await asyncio.sleep(3.5 * WAIT_SECONDS)
        times = [time for time, _, _ in operator.writes if time > WAIT_SECONDS]
        most = max(sum(begin <= time < begin + 1.0 for time in times) for begin in times)
        print(f"at most {most} writes in a second, {len(times) / 2.5 / WAIT_SECONDS:.1f} on average")
        assert most <= 3 * JOBS / WAIT_SECONDS

    operating(test)


def test_page_that_is_dropped_between_two_requests_is_asked_for_at_once() -> None:
    """The version is the same after it, so a request for another one would wait for the whole time."""

    async def test(operator: Operator) -> None:
        agent = operator.client.agents["10.0.0.0"]

        def heard() -> Any:
            return operator.observe(0).page

        while not heard():
            await asyncio.sleep(0.01)
        for attempt in range(2, 14):  # more answers than the listener takes in a row
            agent.show(attempt=attempt)
            await asyncio.sleep(0.01)
        while heard()["attempt"] < attempt or operator.client.open:
            await asyncio.sleep(0.01)
        operator.started = {"startedAt": "2026-01-01T00:00:00Z"}
        assert heard() is None, "another agent may run there"
        await asyncio.sleep(3.0)
        assert heard() is not None

    operating(test, jobs=1)


def test_progress_is_written_in_groups_once_a_second() -> None:
    """A write that stands alone costs the operator more CPU than one of several."""

    async def test(operator: Operator) -> None:
        await asyncio.sleep(3.5 * WAIT_SECONDS)
        times = [time for time, _, _ in operator.writes if time > 1.5 * WAIT_SECONDS]
        assert len(times) > JOBS
        groups = sum(later - earlier > 2 * WRITE_SECONDS for earlier, later in pairwise(times))
        assert groups <= 2 * WAIT_SECONDS + 1

    operating(test)
