"""Lists and reconciles all jobs every few minutes, which heals events that the watches lost."""

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
# A watch that has not reported a job's change after this long is dead.
MISSED_AFTER_SECONDS = 120.0

logger = logging.getLogger(__name__)


class Resync:
    """Resyncs all jobs. /readyz reads `listed`, /healthz reads `stale`."""

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
        self._missed_after_seconds = min(missed_after_seconds, seconds)
        self._uniform = uniform
        self.listed = False
        self.stale = False

    async def run(self) -> None:
        """Runs until cancelled. Raises NotServed if the CRD is deleted."""
        self.listed = self.stale = False
        while True:
            try:
                jobs = await self.once()
                unobserved = self._watches.unobserved(jobs)
                await asyncio.sleep(self._missed_after_seconds)
                self._record_missed(await self._still_missed(unobserved & self._watches.unobserved(jobs)))
            except errors.KubeError as error:
                logger.warning("jobs could not be listed, retrying in %g s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(max(0.0, self._seconds * self._uniform(2 / 3, 4 / 3) - self._missed_after_seconds))

    async def once(self) -> list[Object]:
        """Lists all jobs and queues them, spread over a tenth of the resync interval."""
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

    async def _still_missed(self, missed: set[tuple[Key, str]]) -> set[tuple[Key, str]]:
        """Returns the missed jobs that are still in the same state.

        For a job that has changed since, or is gone, a watch has reported something newer, or will.
        """
        return missed & {(job_key(job), job_digest(job)) for job in await self._list()} if missed else missed

    def _record_missed(self, missed: set[tuple[Key, str]]) -> None:
        """Sets `stale`, and counts and logs the missed jobs."""
        self.stale = bool(missed)
        if missed:
            self._metrics.watch_missed.inc(len(missed))
            some = ", ".join(sorted("/".join(key) for key, _ in missed)[:3])
            logger.error(
                "no watch has reported %d changed jobs (%s) in %g s", len(missed), some, self._missed_after_seconds
            )
