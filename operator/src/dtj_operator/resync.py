"""Every few minutes all jobs are listed and looked at, whatever the watches said: what was lost is healed here."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.client import Client
from dtj_operator.kube.observer import Key, Observer
from dtj_operator.kube.resources import JOB, job_key
from dtj_operator.metrics import Metrics, phase_label
from dtj_operator.watches import WatchState, job_digest
from dtj_operator.workqueue import WorkQueue

RETRY_SECONDS = 5.0
MISSED_AFTER_SECONDS = 120.0  # a watch that has not told of a job's change after this long is dead

logger = logging.getLogger(__name__)


class Resync:
    """`listed` and `stale` are what /readyz and /healthz ask for."""

    def __init__(
        self,
        client: Client,
        queue: WorkQueue[Key],
        observer: Observer,
        watches: WatchState,
        metrics: Metrics,
        namespaces: Sequence[str],
        seconds: float,
        *,
        missed_after_seconds: float = MISSED_AFTER_SECONDS,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._client = client
        self._queue = queue
        self._observer = observer
        self._watches = watches
        self._metrics = metrics
        self._namespaces: Sequence[str | None] = namespaces or [None]
        self._seconds = seconds
        self._told_seconds = min(missed_after_seconds, seconds)
        self._uniform = uniform
        self.listed = False
        self.stale = False

    async def run(self) -> None:
        """Until cancelled. Raises NotServed if the CRD is taken away."""
        while True:
            try:
                jobs = await self.once()
                unobserved = self._watches.unobserved(jobs)
                await asyncio.sleep(self._told_seconds)
                self._judge(await self._still_so(unobserved & self._watches.unobserved(jobs)))
            except errors.KubeError as error:
                logger.warning("jobs could not be listed, again in %g s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(max(0.0, self._seconds * self._uniform(2 / 3, 4 / 3) - self._told_seconds))

    async def once(self) -> list[Object]:
        """List all jobs and put them into the queue, spread over a tenth of the time between two resyncs."""
        jobs = await self._list()
        keys = [job_key(job) for job in jobs]
        self._observer.keep_only(keys)
        self._watches.keep_only(jobs)
        self._metrics.all_job_phases({job_key(job): phase_label(job) for job in jobs})
        self._metrics.resync.set(time.time())
        for key in keys:
            self._observer.invalidate(key)
            self._queue.add_after(key, self._uniform(0, self._seconds / 10) if self.listed else 0)
        self.listed = True
        return jobs

    async def _list(self) -> list[Object]:
        jobs: list[Object] = []
        for namespace in self._namespaces:
            try:
                jobs += await self._client.list(JOB, namespace)
            except errors.ObjectNotFound as error:
                raise errors.NotServed(f"{JOB.plural} are no longer served: the CRD was deleted") from error
        return jobs

    async def _still_so(self, missed: set[tuple[Key, str]]) -> set[tuple[Key, str]]:
        """Without the jobs that have changed since, or are gone: of those a watch told something newer, or will."""
        return missed & {(job_key(job), job_digest(job)) for job in await self._list()} if missed else missed

    def _judge(self, missed: set[tuple[Key, str]]) -> None:
        self.stale = bool(missed)
        if missed:
            self._metrics.watch_missed.inc(len(missed))
            some = ", ".join(sorted("/".join(key) for key, _ in missed)[:3])
            logger.error("no watch has told of %d changed jobs (%s) in %g s", len(missed), some, self._told_seconds)
