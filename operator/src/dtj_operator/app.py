"""`dtj-operator`: creates the components, runs them, and stops them in order on SIGTERM."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dtj_contract import names
from dtj_core.plan import plan
from dtj_operator import errors, full_collections, kopf_shell, logs, settings
from dtj_operator.agent_client import AgentClient
from dtj_operator.controller import Controller, Planner
from dtj_operator.event_loop import EventLoop
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.health import Certificate, HealthServer
from dtj_operator.kube.cache.cache import Cache
from dtj_operator.kube.cache.sick_nodes import count_sick_nodes
from dtj_operator.kube.cache.store import Key, kinds_for
from dtj_operator.kube.client import Client
from dtj_operator.kube.event_recorder import EventRecorder
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.leases import LeaseClient
from dtj_operator.kube.login import Login
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.resources import JOB
from dtj_operator.kube.reviews import ReviewClient
from dtj_operator.leader.claims import Claims
from dtj_operator.leader.leadership import Alone, Leader, Leadership
from dtj_operator.leader.terms import Terms
from dtj_operator.metrics import Metrics
from dtj_operator.metrics_access import MetricsAccess
from dtj_operator.reconciling import Reconciling
from dtj_operator.resync import Resync
from dtj_operator.workqueue import WorkQueue

DRAIN_SECONDS = 10.0
# With leader election, a standby continues at once, and a reconcile that is cut off costs nothing.
HAND_OVER_SECONDS = 0.5
KOPF_STOP_SECONDS = 5.0
# Between two reads of the mounted master key; the kubelet itself takes up to two minutes to update
# it.
KEY_SECONDS = 10.0
CRD_RETRY_SECONDS = 2.0
STUCK_SECONDS = 120.0  # twice the deadline of a reconcile
CRD_MISSING = (
    f"the API server serves no {names.PLURAL} in {names.API_VERSION}; install the CRD: "
    "with the chart, or kubectl apply --server-side -f crds/"
)

logger = logging.getLogger("dtj_operator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the operator.

    Returns the exit status: 0 after SIGTERM, 1 if something that it needs is gone, 2 if it was
    started with wrong options.
    """
    try:
        options = settings.parse(sys.argv[1:] if arguments is None else arguments)
        logs.set_up(options.log_format, options.log_level)
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(run(options, plan))
    except errors.OptionError as error:
        print(f"dtj-operator: {error}", file=sys.stderr)  # noqa: T201  there is no log yet
        return 2
    except errors.OperatorError as error:
        logger.error("%s", error)
        return 1
    return 0


async def run(options: settings.Options, planner: Planner) -> None:
    """Runs until SIGTERM or SIGINT. Raises OperatorError if the operator cannot continue."""
    login = Login(options.kubeconfig, options.context)
    await login.load()
    operator = Operator(options, planner, login)
    try:
        await operator.run()
    finally:
        await operator.close()


class Operator:
    """A running operator with all its components, and no globals.

    Create it on the event loop that runs it.
    """

    def __init__(self, options: settings.Options, planner: Planner, login: Login) -> None:
        self.options = options
        self.login = login
        self.stop = asyncio.Event()
        self.version = importlib.metadata.version("dtj-operator")
        metrics = self.metrics = Metrics(self.version)
        if isinstance(loop := asyncio.get_running_loop(), EventLoop):
            loop.report_blocks(metrics.blocks.observe)
        self.queue: WorkQueue[Key] = WorkQueue(metrics)
        metrics.watch_depth(lambda: len(self.queue))
        self.leases = LeaseClient(login, metrics.request)
        self.reviews = ReviewClient(login, metrics.request)
        self.leader = self._leader()
        self.client = Client(login, metrics.request, fence=self.leader.fence)
        self.agents = AgentClient(options.settings, count=lambda result: metrics.agent_requests.labels(result).inc())
        metrics.watch_keys(self.agents.with_previous_key)
        self.listeners = AgentListeners(self.agents, self.queue.add_after)
        metrics.watch_listeners(lambda: self.listeners.count(silent=False), lambda: self.listeners.count(silent=True))
        self.cache = Cache(self.client, options.namespaces, metrics, self._wake, kinds_for(options.settings))
        for resource, table in self.cache.tables.items():
            metrics.watch_objects(resource.plural, table.__len__)
        signs = options.settings.sick_nodes
        metrics.watch_sick_nodes(*(partial(count_sick_nodes, self.cache, signs, believed=b) for b in (True, False)))
        self.observer = Observer(self.cache, self.client, self.listeners)
        recorder = EventRecorder(self.client, socket.gethostname(), dropped=metrics.events_dropped.inc)
        executor = PlanExecutor(self.client, self.cache, self.observer, recorder)
        self.controller = Controller(self.queue, self.observer, executor, planner, options.settings, metrics)
        resync = Resync(self.cache, self.queue, self.observer, metrics, options.resync_seconds)
        self.reconciling = Reconciling(self.cache, self.queue, self.controller, resync, self.listeners, options.workers)
        self.terms = Terms(self.leader, self._start_term, self._stop_term)
        self._drain_seconds = HAND_OVER_SECONDS if options.leader_election else DRAIN_SECONDS
        self._is_started = asyncio.Event()
        self.server = HealthServer(
            options.metrics_port,
            metrics.text,
            (self._working, self._watching),
            (self._listed,),
            MetricsAccess(self.reviews).decide if options.metrics_auth else None,
            Certificate(Path(options.metrics_cert_dir)) if options.metrics_cert_dir else None,
        )

    async def run(self) -> None:
        """Runs until `stop` is set. Raises OperatorError if the operator ends before that."""
        self._on_signals()
        try:
            await self.server.start()
        except OSError as error:
            raise errors.OptionError(f"--metrics-port: {error.strerror or error}; write another port") from error
        where = ", ".join(self.options.namespaces) or "all namespaces"
        logger.info("dtj-operator %s serves %s; port %d", self.version, where, self.server.port)
        if not await self._crd():
            return
        try:
            async with asyncio.TaskGroup() as group:
                kopf_stop = asyncio.Event()
                caching = group.create_task(self.cache.run(), name="cache")
                shell = kopf_shell.run(
                    self.login,
                    self.options.namespaces,
                    kopf_stop,
                    on_start=self._start_up,
                    on_stop=self._stop_reconciling,
                    started=self._on_signals,
                )
                kopf = group.create_task(shell, name="kopf")
                beside = [
                    group.create_task(self._watch_keys(), name="master key"),
                    group.create_task(full_collections.run(), name="full collections"),
                ]
                terms = group.create_task(self._run_terms(), name="terms")
                election = group.create_task(self.leader.run(), name="election")
                await self.stop.wait()
                for task in beside:
                    task.cancel()
                await self._end(terms, election, kopf, kopf_stop)
                caching.cancel()
        except* errors.OperatorError as failed:
            raise _first(failed) from None
        logger.info("stopped")

    async def close(self) -> None:
        """Releases the lease, if that has not been done, and closes every connection."""
        await self.leader.release()
        await self.server.stop()
        await self.listeners.stop()
        await self.agents.close()
        await self.client.close()
        await self.leases.close()
        await self.reviews.close()

    def _leader(self) -> Leader:
        options, metrics = self.options, self.metrics
        if not options.leader_election:
            leader: Leader = Alone()
        else:
            installation = f"{options.lease_namespace}/{options.lease_name}"
            claims = options.claims_namespace and Claims(
                self.leases, options.claims_namespace, installation, options.namespaces, metrics.overlapping.set
            )
            identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            leader = Leadership(
                self.leases, options.lease_namespace, options.lease_name, identity, options.timing, claims or None
            )
        leader.on_start(lambda: metrics.leader.set(1))
        leader.on_stop(lambda: metrics.leader.set(0))
        return leader

    async def _crd(self) -> bool:
        """Waits for the CRD. Returns False if `stop` is set meanwhile. Raises NotServed."""
        deadline = time.monotonic() + self.options.crd_wait_seconds
        warned = False
        while not self.stop.is_set():
            try:
                if await self.client.serves(JOB):
                    return True
                problem = CRD_MISSING
            except errors.KubeError as error:
                problem = f"the API server did not list its resources: {error}"
            if time.monotonic() > deadline:
                raise errors.NotServed(problem)
            if not warned:
                logger.warning("%s; waiting up to %g s for it", problem, self.options.crd_wait_seconds)
                warned = True
            try:
                async with asyncio.timeout(CRD_RETRY_SECONDS):
                    await self.stop.wait()
            except TimeoutError:
                pass
        return False

    async def _watch_keys(self) -> None:
        """Stops the operator when the master key is replaced.

        The kubelet restarts the operator, which then reads the new key.
        """
        known = self.options.settings
        rejected = ""
        while True:
            await asyncio.sleep(KEY_SECONDS)
            try:
                keys = self.options.read_keys()
            except errors.OptionError as error:  # the operator would not start with these
                if str(error) != rejected:
                    logger.error("the master key was replaced by an invalid key: %s", error)
                rejected = str(error)
                continue
            if keys != (known.master_key, known.previous_master_key):
                logger.info(
                    "the master key was replaced: stopping, so that the kubelet restarts the operator with the new key"
                )
                self.stop.set()
                return

    async def _start_up(self) -> None:
        self._is_started.set()

    async def _run_terms(self) -> None:
        """Reconciles whenever this process leads, until cancelled."""
        await self._is_started.wait()
        await self.cache.synced()
        full_collections.begin()
        await self.terms.run()

    async def _start_term(self) -> None:
        self.observer.begin()
        await self.reconciling.start()

    async def _stop_term(self) -> None:
        """Ends a term that was lost. A reconcile may end at any line: the next leader repeats it."""
        await self.reconciling.stop(0.0)
        self.observer.keep_only(())
        self.metrics.all_job_phases({})

    async def _stop_reconciling(self) -> None:
        await self.reconciling.stop(self._drain_seconds)

    async def _end(
        self,
        terms: asyncio.Task[None],
        election: asyncio.Task[None],
        kopf: asyncio.Task[None],
        kopf_stop: asyncio.Event,
    ) -> None:
        """Lets reconciles in flight finish, releases the lease, and stops the rest."""
        logger.info("stopping: reconciles in flight have %g s to finish", self._drain_seconds)
        terms.cancel()
        await asyncio.wait([terms])
        await self._stop_reconciling()
        election.cancel()
        await asyncio.wait([election])
        await self.leader.release()
        # Stop the server before kopf: kopf waits for every task that is younger than itself, such
        # as one of an HTTP connection, as if the task were its own.
        await self.server.stop()
        kopf_stop.set()
        _, late = await asyncio.wait([kopf], timeout=KOPF_STOP_SECONDS)
        for task in late:
            logger.warning("kopf did not stop within %g s", KOPF_STOP_SECONDS)
            task.cancel()

    def _on_signals(self) -> None:
        """Handles the signals. Called again once kopf has started, because kopf takes them over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    def _wake(self, key: Key, seconds: float) -> None:
        # A process that becomes the leader looks at all jobs first.
        if self.leader.leads:
            self.reconciling.wake(key, seconds)

    # The checks of /healthz. None of them checks the API server, because a restart would not bring
    # it back.
    def _working(self) -> str | None:
        if self.reconciling.failure() is not None:
            return "a worker has ended"
        stuck = self.queue.longest_processing()
        return f"a reconcile has not finished after {stuck:.0f} s" if stuck > STUCK_SECONDS else None

    def _watching(self) -> str | None:
        return "a watch is stuck" if self.cache.stuck() else None

    def _listed(self) -> str | None:
        if self.options.leader_election and not self.leader.leads:
            # A standby is ready to take over.
            return None if self.leader.settled else "the lease of the leader election has not been read yet"
        return None if self.cache.is_synced else "the jobs and their children have not been listed yet"


def _first(group: BaseExceptionGroup[errors.OperatorError]) -> errors.OperatorError:
    """Returns the first exception of a group, whose groups are those of nested tasks."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, errors.OperatorError)
    return found


if __name__ == "__main__":
    sys.exit(main())
