"""One process of the operator in a simulated world: the real controller, queue, observer, executor and recorder.

Its client and its watches reach the simulated API server. The process can be killed at any call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NoReturn

from dtj_core.plan import plan
from dtj_core.plan.model import Object
from dtj_operator import agent_client, errors
from dtj_operator.agent_client import AgentClient
from dtj_operator.agent_proof import Proof
from dtj_operator.controller import Controller
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.kube.cache.cache import Cache
from dtj_operator.kube.cache.store import Key, kinds_for
from dtj_operator.kube.event_recorder import EventRecorder
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.resources import JOB, STATEFUL_SET, Resource
from dtj_operator.reconciling import Reconciling
from dtj_operator.resync import Resync
from dtj_operator.workqueue import Priority, WorkQueue
from tests.unit.operator.simulated_api import NAMESPACE, labelled

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World

WORKERS = 2
# A world never needs it.
RESYNC_SECONDS = 1e5
POLL_SECONDS = 5.0
"""Between two requests to agents that answer at once."""


class Measures:
    """Takes every measurement. A reconcile that ends as a bug is a violation."""

    def __init__(self, world: World) -> None:
        self._world = world

    def labels(self, value: str) -> Measures:
        if value == "bug":
            self._world.fail("a reconcile raised what it should not")
        if value in ("success", "requeue", "error", "conflict"):
            self._world.reconciles += 1
        return self

    def __call__(self, *_: Any) -> None:
        """Takes a measurement."""

    def __getattr__(self, _: str) -> Any:
        return self


class Client:
    """The operator's client. Every call takes a while, and may fail as world.faults decide."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self.served: Object | None = None
        """The job as the operator last planned on it, or has confirmed it since."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        age = 0.0 if resource is JOB else self._world.faults.read_age()  # a stale job would confirm a stale plan
        found = await self._call("get", resource, lambda: self._read(resource, name, age))
        if found is None:
            raise errors.ObjectNotFound(f"{resource.kind} {name} not found", status=404)
        if resource is JOB:
            self.served = found
        return dict(found)

    async def list(self, resource: Resource, namespace: str | None, selector: str | None = None) -> list[Object]:
        pages = [page async for page, _ in self.pages(resource, namespace, selector)]
        return [found for page in pages for found in page]

    async def pages(
        self, resource: Resource, namespace: str | None, selector: str | None = None, *, limit: int = 500
    ) -> AsyncIterator[tuple[list[Object], str]]:
        api = self._world.api
        read = lambda: (api.of(resource.plural), str(api.version))  # noqa: E731
        listed, version = await self._call("list", resource, read)
        yield [found for found in listed if selector is None or labelled(found)], version

    async def watch(
        self, resource: Resource, namespace: str | None, selector: str | None, version: str, **_: float
    ) -> AsyncIterator[list[Object]]:
        """Yields what happened since `version`, late if the world is stale, until the watch breaks."""
        world, position = self._world, int(version)
        await self._call("watch", resource, lambda: None)
        while True:
            await world.change_beyond(resource.plural, position)
            await asyncio.sleep(world.latency() + world.faults.read_age())
            self._operator.check_alive()
            fault = world.faults.of_watch()
            if fault == "gone":
                raise errors.Gone("too old resource version", status=410)
            if fault == "broken":
                raise errors.Transient("the connection was lost")
            new = [each for each in world.api.changes[resource.plural] if each[0] > position]
            events = [{"type": kind, "object": found} for _, kind, found in new if selector is None or labelled(found)]
            yield events
            if fault == "twice":
                yield events
            position = new[-1][0]
            yield [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(position)}}}]

    async def create(self, resource: Resource, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        name = body["metadata"]["name"]
        if dry_run:
            return await self._call("dry-run", resource, lambda: self._admit(name))
        created: Object = await self._call("create", resource, lambda: self._world.api.create(resource, body), name)
        return created

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        body: Object,
        *,
        subresource: str | None = None,
        force: bool = True,
    ) -> Object:
        name = body["metadata"]["name"]

        def act() -> Object:
            if resource is STATEFUL_SET:
                self._world.checks.stateful_set_applied(self.served)
            if subresource:
                self._world.checks.status_written(body, self._operator.wall(), self._operator.number)
            return self._world.api.apply(resource, body, subresource, force=force)

        applied: Object = await self._call("apply", resource, act, subresource or name)
        return applied

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Object) -> Object:
        def change(live: Object) -> Object:
            given = patch.get("metadata", {})
            if given.get("uid", live["metadata"]["uid"]) != live["metadata"]["uid"]:
                raise errors.Conflict("the uid differs", status=409)
            annotations = live["metadata"].get("annotations", {}) | given.get("annotations", {})
            return {**live, **patch, "metadata": live["metadata"] | {"annotations": annotations}}

        def act() -> Object:
            changed = self._world.api.replace(resource, name, change)
            if changed is None:
                raise errors.ObjectNotFound(f"{name} not found", status=404)
            return changed

        merged: Object = await self._call("patch", resource, act, name)
        return merged

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> Object:
        def act() -> Object:
            self._world.checks.deleted(resource, name, uid, self.served)
            if grace_seconds == 0:
                self._world.checks.force_deleted(name, uid, self._operator.wall())
            self._world.api.delete(resource, name, uid=uid, grace=grace_seconds)
            left = self._world.api.find(resource.plural, name)
            return {"kind": "Status"} if left is None else left

        answer: Object = await self._call("delete", resource, act, name)
        return answer

    def _read(self, resource: Resource, name: str, age: float) -> Object | None:
        api = self._world.api
        return api.at((resource.plural, name), self._world.wall() - age) if age else api.find(resource.plural, name)

    def _admit(self, name: str) -> Object:
        if self._world.cluster.quota_spent:
            raise errors.Forbidden(f'pods "{name}" is forbidden: exceeded quota', status=403, reason="Forbidden")
        return {}

    async def _call(self, verb: str, resource: Resource, act: Callable[[], Any], write: str = "") -> Any:
        world, operator = self._world, self._operator
        operator.check_alive()
        await asyncio.sleep(world.latency())
        operator.check_alive()
        fault = world.faults.of_call(write)
        if fault == "kill before":
            operator.die()
        if fault in ("late", "lost"):
            if fault == "late":
                act()
                world.written(verb, resource, write)
            await asyncio.sleep(15.0)
            raise errors.Transient(f"{verb} {resource.plural}: no answer in 15 s")
        if fault == "conflict":
            raise errors.Conflict("the object has been modified", status=409)
        if fault.isdigit():
            raise errors.Transient("the server is busy", status=int(fault))
        found = act()
        if write:
            world.written(verb, resource, write)
        if fault == "kill after":
            operator.die()
        await asyncio.sleep(world.latency())
        operator.check_alive()
        return found


class Agents(AgentClient):
    """The real client of the agents, whose requests reach the simulated pods."""

    def __init__(self, world: World, operator: Operator) -> None:
        super().__init__(world.settings, now=world.clock)
        self._world = world
        self._operator = operator

    async def _ask(self, job: Object, pod: Object, message: str, after: str, wait: float, proof: Proof) -> Object:
        self._operator.check_alive()
        await asyncio.sleep(self._world.latency())
        self._operator.check_alive()
        answer = self._page(job, pod)
        ends = self._world.clock() + wait
        while answer is not None and answer.get("statusVersion") == after and self._world.clock() < ends:
            await asyncio.sleep(1.0)
            self._operator.check_alive()
            answer = self._page(job, pod)
        if answer is None:
            raise agent_client.Unanswered(agent_client.UNREACHABLE, "is unreachable")
        if answer.get("uid") != job["metadata"]["uid"]:
            raise agent_client.Unanswered(agent_client.INVALID, "belongs to another job")
        return answer

    def _page(self, job: Object, pod: Object) -> Object | None:
        return self._world.agents.page(pod["status"]["podIP"], job["metadata"]["uid"])


class Listeners(AgentListeners):
    """The real listeners. One that ends by itself is a violation."""

    def __init__(self, world: World, client: AgentClient, enqueue: Callable[[Key, Priority], None]) -> None:
        # Its draws are its own, so that those of the world stay as they are.
        uniform = random.Random(f"{world.seed} listeners").uniform
        super().__init__(client, enqueue, poll_seconds=POLL_SECONDS, wall=world.wall, uniform=uniform)
        self._world = world

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._world.violation = self._world.violation or task.exception()
        super()._ended(key, task)


class SimulatedObserver(Observer):
    """The real observer. Its client keeps what the operator plans on."""

    def get_job(self, key: Key) -> Object | None:
        found = super().get_job(key)
        client: Any = self._client
        client.served = found
        return found


class Operator:
    """One process, from its start to its end."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        measures: Any = Measures(world)
        self.queue: WorkQueue[Key] = WorkQueue(measures)
        self.client: Any = Client(world, self)
        self.agents = Agents(world, self)
        self.listeners = Listeners(world, self.agents, self.queue.add_after)
        self.cache = Cache(self.client, (NAMESPACE,), measures, self._wake, kinds_for(world.settings))
        self.observer = SimulatedObserver(self.cache, self.client, self.listeners)
        skew = world.rng.choice((0.0, 0.0, world.rng.uniform(-90.0, 90.0)))
        self.wall = lambda: world.wall() + skew
        recorder = EventRecorder(self.client, f"operator-{number}", now=self.wall)
        executor = PlanExecutor(self.client, self.cache, self.observer, recorder)
        planner = world.checks.history.recorded(number, plan)
        controller = Controller(self.queue, self.observer, executor, planner, world.settings, measures, now=self.wall)
        controller._rejections._now = world.clock
        resync = Resync(self.cache, self.queue, self.observer, measures, RESYNC_SECONDS, uniform=world.rng.uniform)
        self.reconciling = Reconciling(self.cache, self.queue, controller, resync, self.listeners, WORKERS)
        for reflector in self.cache._reflectors:
            reflector._jitter = world.rng.random
        loop = asyncio.get_running_loop()
        self._started = [loop.create_task(self.cache.run()), loop.create_task(self.reconciling.start())]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        resyncing = self.reconciling._resyncing
        return [
            *self._started,
            *self.cache._tasks,
            *self.reconciling._workers,
            *([resyncing] if resyncing is not None else []),
        ]

    def _wake(self, key: Key, seconds: float) -> None:
        self.reconciling.wake(key, seconds)

    def check_alive(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    def die(self) -> NoReturn:
        """Kills the process in the middle of a call of its own."""
        self.world.kill(self)
        raise asyncio.CancelledError

    async def close(self) -> None:
        """Ends the process at once."""
        self.dead = True
        self.queue.close()
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.listeners.stop()
        await self.agents.close()
