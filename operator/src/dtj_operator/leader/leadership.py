"""Leadership of this process: keeps the Lease, and starts and stops what only the leader may do.

`Leadership` is the elected kind. `Alone` is the one without an election, which always leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.leases import LeaseClient
from dtj_operator.kube.resources import LEASE
from dtj_operator.leader import lease_object
from dtj_operator.leader.election import Do, Election, Step, Timing

RELEASE_SECONDS = 1.0
# Between two tries to watch the lease. Without a watch, the standby takes over when the lease expires.
WATCH_RETRY_SECONDS = 1.0
# The event loop may wake a timer a moment early; without this it would spin until the time has come.
SHORTEST_WAIT_SECONDS = 0.001

logger = logging.getLogger(__name__)


def clock() -> float:
    """Returns seconds that continue while the machine sleeps, unlike those of time.monotonic."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Permit(Protocol):
    """Decides whether the holder of the lease may act (dtj_operator.leader.claims)."""

    async def look(self) -> bool:
        """Returns whether it may. Called again and again while this process holds the lease."""
        ...

    def forget(self) -> None:
        """Forgets what was seen, because this process does not hold the lease any more."""

    seconds: float
    """Between two calls of `look`."""


class Leader:
    """The interface to both kinds of leadership, and what they share."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set while this process does not lead."""
        self.lost.set()
        self._leads = asyncio.Event()
        self._starts: list[Callable[[], None]] = []
        self._stops: list[Callable[[], None]] = []

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        return self._leads.is_set()

    @property
    def settled(self) -> bool:
        """Whether this process leads, or knows that another one does."""
        return self.leads

    async def wait_until_leader(self) -> None:
        """Returns when this process leads."""
        await self._leads.wait()

    def on_start(self, call: Callable[[], None]) -> None:
        """Calls `call` whenever this process becomes the leader, before `wait_until_leader` returns."""
        self._starts.append(call)

    def on_stop(self, call: Callable[[], None]) -> None:
        """Calls `call` whenever this process stops leading."""
        self._stops.append(call)

    def fence(self) -> None:
        """Raises NotLeader if this process must not write now."""

    async def run(self) -> None:
        """Runs until cancelled."""
        raise NotImplementedError

    async def release(self) -> None:
        """Stops leading, so that another process can take over at once."""
        self._set(leads=False)

    def _set(self, *, leads: bool) -> None:
        if leads == self.leads:
            return
        if leads:
            self.lost.clear()
            self._leads.set()
        else:
            self._leads.clear()
            self.lost.set()
        for call in self._starts if leads else self._stops:
            call()


class Alone(Leader):
    """Leads from the start: for an operator without leader election."""

    async def run(self) -> None:
        """Leads until cancelled."""
        self._set(leads=True)
        await asyncio.Event().wait()


class Leadership(Leader):
    """Leads while this process holds the lease and `permit` allows it to act."""

    def __init__(
        self,
        client: LeaseClient,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing,
        permit: Permit | None = None,
        *,
        now: Callable[[], float] = clock,
    ) -> None:
        super().__init__()
        self._now = now
        self._client = client
        self._namespace, self._name = namespace, name
        self._timing = timing
        self._permit = permit
        self._permitted = permit is None
        self._election = Election(me=identity, timing=timing)
        self._lease: Object = lease_object.new(namespace, name)
        self._woken = asyncio.Event()
        self._problem = ""

    @property
    def settled(self) -> bool:
        """Whether the lease has been read."""
        return self._election.record is not None

    def fence(self) -> None:
        """Raises NotLeader if another process may hold the lease by now."""
        if not self.leads or self._election.left(self._now()) <= 0:
            raise errors.NotLeader("not the leader (any more): the write was not sent")

    async def run(self) -> None:
        """Takes part in the election until cancelled."""
        while True:
            await self._term()

    async def release(self) -> None:
        """Stops leading and empties the lease. The caller has ended `run` before."""
        holds = self._election.left(self._now()) > 0
        self._set(leads=False)
        self._election = self._election.stepped_down()
        if not holds:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._empty()
        except (errors.KubeError, TimeoutError) as error:
            logger.warning(
                "the lease was not released, so the next leader waits for its end: %s", str(error) or "no answer"
            )
        else:
            logger.info("released the lease %s/%s", self._namespace, self._name)

    async def _empty(self) -> None:
        try:
            await self._client.replace(lease_object.released(self._lease, time.time()), RELEASE_SECONDS)
        except errors.Conflict:  # a renewal was under way when `run` was ended
            self._lease = await self._client.get(LEASE, self._namespace, self._name)
            if lease_object.record(self._lease).holder == self._election.me:
                await self._client.replace(lease_object.released(self._lease, time.time()), RELEASE_SECONDS)

    async def _term(self) -> None:
        """Leads until the lease is lost, or waits until it is won.

        Beside the election runs the leader's permit, or the standby's watch.
        """
        leads = self._election.leads
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(self._ask_permit() if leads else self._watch(), name="leadership")
            try:
                while self._election.leads == leads:
                    await self._once(self._election.step(self._now()))
            finally:
                if leads:
                    self._set(leads=False)
                    self._permitted = self._permit is None
                    if self._permit is not None:
                        self._permit.forget()
                beside.cancel()

    async def _once(self, step: Step) -> None:
        """Carries out one step, and waits as long as it asks for."""
        if step.do is Do.WAIT:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(step.seconds, SHORTEST_WAIT_SECONDS)):
                    await self._woken.wait()
            self._woken.clear()
        elif step.do is Do.STEP_DOWN:
            logger.error("no longer the leader: the lease could not be renewed for %g s", self._timing.renew_seconds)
            self._election = self._election.stepped_down()
        else:
            await self._call(step)

    async def _call(self, step: Step) -> None:
        """Makes the call of a step, and takes its result into the election."""
        started = self._now()
        try:
            async with asyncio.timeout(step.seconds):
                if step.do is Do.READ:
                    self._observe(await self._read())
                else:
                    self._lease = await self._write(step)
                    self._won(started)
        except (errors.Conflict, errors.ObjectNotFound):
            self._election = self._election.conflicted()
        except (errors.KubeError, TimeoutError) as error:
            self._election = self._election.failed(self._now())
            problem = str(error) or "no answer in time"
            if problem != self._problem:
                logger.warning("the lease %s/%s: %s", self._namespace, self._name, problem)
            self._problem = problem
        else:
            self._problem = ""

    async def _read(self) -> Object | None:
        try:
            return await self._client.get(LEASE, self._namespace, self._name)
        except errors.ObjectNotFound:
            return None

    async def _write(self, step: Step) -> Object:
        me, seconds = self._election.me, self._timing.lease_seconds
        if step.do is Do.CREATE:
            lease = lease_object.held(lease_object.new(self._namespace, self._name), me, seconds, time.time())
            return await self._client.create(LEASE, self._namespace, lease)
        return await self._client.replace(lease_object.held(self._lease, me, seconds, time.time()), step.seconds)

    def _won(self, started: float) -> None:
        """Takes a successful write into the election."""
        before = self._election
        self._election = before.written(lease_object.record(self._lease), started)
        if not before.leads:
            logger.info("leader: holds the lease %s/%s as %s", self._namespace, self._name, before.me)
            self._set(leads=self._permitted)

    def _observe(self, lease: Object | None) -> None:
        """Takes what was read or watched into the election."""
        before = self._election
        if lease is not None:
            self._lease = lease
        self._election = before.observed(None if lease is None else lease_object.record(lease), self._now())
        holder = self._election.record.holder if self._election.record is not None else ""
        if before.leads and not self._election.leads:
            logger.error("no longer the leader: %s holds the lease", holder or "nobody")
        elif holder not in ("", before.me) and (before.record is None or before.record.holder != holder):
            logger.info("standby: %s holds the lease %s/%s", holder, self._namespace, self._name)

    async def _watch(self) -> None:
        """Reports each change of the lease to the standby, so that it takes a released lease at once."""
        while True:
            try:
                async for lease in self._client.watch_lease(self._namespace, self._name):
                    self._observe(lease)
                    self._woken.set()
            except errors.KubeError as error:
                logger.debug("the watch of the lease ended: %s", error)
            await asyncio.sleep(WATCH_RETRY_SECONDS)

    async def _ask_permit(self) -> None:
        """Starts and stops the leader's work as the permit allows."""
        while self._permit is not None:
            self._permitted = await self._permit.look()
            if self._election.left(self._now()) > 0:
                self._set(leads=self._permitted)
            await asyncio.sleep(self._permit.seconds)
