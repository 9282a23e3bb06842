"""Reconciles one job: observes it and its children, plans, executes the plan.

The rejection cache is the only state that one reconcile leaves to the next, and it only saves
calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from dtj_core.plan.model import Object, Observed, Plan, Settings
from dtj_operator import errors, logs
from dtj_operator.admission_backoff import RejectionCache, with_rejection
from dtj_operator.kube.cache.store import Key
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.rejections import Rejected
from dtj_operator.metrics import Metrics, phase_label
from dtj_operator.workqueue import Priority, WorkQueue

RECONCILE_SECONDS = 60.0
MANY_PODS = 256
Planner = Callable[[Object, Observed, float, Settings], Plan]

logger = logging.getLogger(__name__)


class Controller:
    """Takes jobs from the queue and brings each of them a step closer to its spec."""

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
        """Works on one job after the other until the queue is closed."""
        while (key := await self._queue.get()) is not None:
            logs.set_job(*key)
            try:
                await self._process(key)
            finally:
                self._queue.done(key)
                logs.clear_job()
            # A reconcile without a request has not let anything else run.
            await asyncio.sleep(0)

    async def _process(self, key: Key) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                found, again = await self.reconcile(key)
        except errors.NotLeader as error:
            result, delay = "error", self._back_off(key)
            logger.info("reconcile ended: %s", error)
        except (errors.KubeError, TimeoutError) as error:
            result = "conflict" if isinstance(error, errors.Conflict) else "error"
            delay = self._back_off(key)
            cause = str(error) or f"not finished after {RECONCILE_SECONDS:g} s"
            # A job that changes or is deleted during its reconcile is routine, so it is no warning.
            level = logging.INFO if isinstance(error, errors.ObjectNotFound | errors.Conflict) else logging.WARNING
            logger.log(level, "reconcile failed, retrying in %g s: %s", delay, cause)
        except Exception as error:
            # A bug must stop one job, not all of them, so it is logged, counted and retried.
            result = "bug"
            delay = self._back_off(key)
            first = delay <= self._queue.first_backoff
            logger.error("bug in the operator, retrying in %g s: %r", delay, error, exc_info=error if first else None)
        else:
            self._queue.forget(key)
            result = "gone" if not found else "success" if again is None else "requeue"
            if again is not None:
                self._queue.add_after(key, again, Priority.AGAIN if again else Priority.CHANGED)
        self._metrics.reconcile.labels(result).inc()
        self._metrics.reconcile_seconds.observe(time.monotonic() - began)

    def _back_off(self, key: Key) -> float:
        return self._queue.add_rate_limited(key)

    async def reconcile(self, key: Key) -> tuple[bool, float | None]:
        """Reconciles one job.

        Returns (found, requeue_after): whether the job exists, and the seconds until the next
        reconcile (None: wait for an event). Raises KubeError; the next try finds whatever was done
        before.
        """
        job = self._observer.get_job(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            # Kubernetes deletes the children by their owner references, so there is nothing to
            # clean up.
            self._rejections.clear(key)
            self._metrics.job_phase(key, None)
            return False, None
        logs.set_attempt(job)
        observed = self._rejections.annotate(job, await self._observer.observe(job))
        plan = await self._plan(job, observed)
        try:
            written = await self._executor.execute(job, plan)
        except Rejected as rejected:
            self._rejections.add(job, rejected)
            again = self._rejections.wait(job) or 0
            logger.warning("the API server rejects an object of the job, retrying in %.0f s: %s", again, rejected)
            plan = await self._plan(job, with_rejection(observed, rejected))
            written = await self._executor.execute(job, plan)
        else:
            # Only a plan that was made without a remembered rejection proves that the rejection is
            # over.
            if not (observed.rejection or observed.refusal):
                self._rejections.clear(key)
        if written is not None:
            before, after = job.get("status", {}), written.get("status", {})
            self._metrics.status_written(before, after)
            if (before.get("phase"), before.get("reason")) != (after.get("phase"), after.get("reason")):
                logger.info("phase %s, reason %s", after.get("phase"), after.get("reason"))
        self._metrics.job_phase(key, phase_label(written or job))
        times = [time for time in (plan.requeue_after, self._rejections.wait(job)) if time is not None]
        return True, min(times, default=None)

    async def _plan(self, job: Object, observed: Observed) -> Plan:
        """Returns the plan, which is made in a thread where it would block the event loop: a plan is pure.

        That of a job of 1,024 pods takes up to 90 ms of CPU.
        """
        arguments = (job, observed, self._now(), self._settings)
        if len(observed.pods) > MANY_PODS:
            return await asyncio.to_thread(self._planner, *arguments)
        return self._planner(*arguments)
