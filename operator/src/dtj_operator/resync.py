"""Looks at every job that has not ended again every few minutes, and counts all jobs by phase.

The store is true without it. A resync guards against mistakes of our own, and costs no request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from dtj_core.plan.conditions import is_finished
from dtj_core.plan.model import Object
from dtj_operator.kube.cache.store import Key, Store
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.resources import job_key
from dtj_operator.metrics import Metrics, phase_label
from dtj_operator.workqueue import Priority, WorkQueue


class Resync:
    """Queues the jobs of the store: all at the start, and then those that have not ended."""

    def __init__(
        self,
        store: Store,
        queue: WorkQueue[Key],
        observer: Observer,
        metrics: Metrics,
        seconds: float,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self._queue = queue
        self._observer = observer
        self._metrics = metrics
        self._seconds = seconds
        self._uniform = uniform

    async def run(self) -> None:
        """Runs until cancelled."""
        self.queue_all()
        while True:
            await asyncio.sleep(self._seconds * self._uniform(2 / 3, 4 / 3))
            self.queue_unfinished()

    def queue_all(self) -> None:
        """Queues every job.

        Jobs that are new, or have another spec than the last operator saw, come first, and jobs that
        have ended last: their children may have to be deleted still.
        """
        for job in sorted(self._count(), key=lambda job: is_finished(job.get("status") or {})):
            self._queue.add(job_key(job), Priority.AGAIN if _is_known(job) else Priority.CHANGED)

    def queue_unfinished(self) -> None:
        """Queues the jobs that have not ended, spread over a tenth of the interval."""
        jobs = self._count()
        self._observer.keep_only(map(job_key, jobs))
        for job in jobs:
            if not is_finished(job.get("status") or {}):
                self._queue.add_after(job_key(job), self._uniform(0, self._seconds / 10))

    def _count(self) -> list[Object]:
        jobs = self._store.jobs()
        self._metrics.all_job_phases({job_key(job): phase_label(job) for job in jobs})
        self._metrics.resync.set(time.time())
        return jobs


def _is_known(job: Object) -> bool:
    """Returns whether an operator has planned for the spec of the job before."""
    status = job.get("status") or {}
    return is_finished(status) or status.get("observedGeneration", 0) == job["metadata"].get("generation", 1)
