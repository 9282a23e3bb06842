"""One reconcile: read the job, observe, plan, carry out. Between two of them only what saves calls is remembered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from dtj_core.plan.model import Object, Observed, Plan, Settings
from dtj_operator import errors, logs
from dtj_operator.admission_backoff import RejectionCache, with_rejection
from dtj_operator.kube.executor import PlanExecutor, Rejected
from dtj_operator.kube.observer import Key, Observer
from dtj_operator.metrics import Metrics, phase_label
from dtj_operator.workqueue import WorkQueue

RECONCILE_SECONDS = 60.0
Planner = Callable[[Object, Observed, float, Settings], Plan]

logger = logging.getLogger(__name__)


class Controller:
    """Takes jobs from the queue and brings each a step nearer to what was asked for."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        observer: Observer,
        executor: PlanExecutor,
        planner: Planner,
        settings: Settings,
        metrics: Metrics,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._observer = observer
        self._executor = executor
        self._planner = planner
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._rejections = RejectionCache()

    async def work(self) -> None:
        """A worker: one job after the other until the queue is closed."""
        while (key := await self._queue.get()) is not None:
            logs.set_job(*key)
            try:
                await self._process(key)
            finally:
                self._queue.done(key)
                logs.clear_job()

    async def _process(self, key: Key) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                found, again = await self.reconcile(key)
        except (errors.KubeError, TimeoutError) as error:
            result = "conflict" if isinstance(error, errors.Conflict) else "error"
            delay = self._back_off(key)
            what = str(error) or f"not done in {RECONCILE_SECONDS:g} s"
            # The world moves on under a reconcile: a job that is deleted meanwhile is no reason to warn anyone.
            level = logging.INFO if isinstance(error, errors.ObjectNotFound | errors.Conflict) else logging.WARNING
            logger.log(level, "reconcile failed, again in %g s: %s", delay, what)
        except Exception as error:  # a bug stops one job, not all: it is shown, counted and tried again
            result = "bug"
            delay = self._back_off(key)
            first = delay <= self._queue.first_backoff
            logger.error("bug in the operator, again in %g s: %r", delay, error, exc_info=error if first else None)
        else:
            self._queue.forget(key)
            result = "gone" if not found else "success" if again is None else "requeue"
            if again is not None:
                self._queue.add_after(key, again)
        self._metrics.reconcile.labels(result).inc()
        self._metrics.reconcile_seconds.observe(time.monotonic() - began)

    def _back_off(self, key: Key) -> float:
        self._observer.invalidate(key)
        return self._queue.add_rate_limited(key)

    async def reconcile(self, key: Key) -> tuple[bool, float | None]:
        """Is there such a job, and in how many seconds it must be looked at again (None: when something happens).

        Raises KubeError; whatever was done before is found done by the next try.
        """
        job = await self._observer.get_job(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            # The children go by their owner references; there is nothing of ours to clean up.
            self._observer.invalidate(key)
            self._rejections.clear(key)
            self._metrics.job_phase(key, None)
            return False, None
        logs.set_attempt(job)
        observed = self._rejections.annotate(job, await self._observer.observe(job))
        plan = self._planner(job, observed, self._now(), self._settings)
        try:
            written = await self._executor.execute(job, plan)
        except Rejected as rejected:
            self._rejections.add(job, rejected)
            again = self._rejections.wait(job) or 0
            logger.warning("the API server refuses what the job asks for, again in %.0f s: %s", again, rejected)
            plan = self._planner(job, with_rejection(observed, rejected), self._now(), self._settings)
            written = await self._executor.execute(job, plan)
        else:
            if not (observed.rejection or observed.refusal):  # it was planned as if nothing had ever been refused
                self._rejections.clear(key)
        if written is not None:
            before, after = job.get("status", {}), written.get("status", {})
            self._metrics.status_written(before, after)
            if (before.get("phase"), before.get("reason")) != (after.get("phase"), after.get("reason")):
                logger.info("%s, because of %s", after.get("phase"), after.get("reason"))
        self._metrics.job_phase(key, phase_label(written or job))
        times = [time for time in (plan.requeue_after, self._rejections.wait(job)) if time is not None]
        return True, min(times, default=None)
