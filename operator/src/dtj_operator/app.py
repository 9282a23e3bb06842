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

from dtj_contract import names
from dtj_core.plan import plan
from dtj_operator import errors, logs, settings
from dtj_operator.agent_client import AgentClient
from dtj_operator.controller import Controller, Planner
from dtj_operator.health import HealthServer
from dtj_operator.kube.client import Client
from dtj_operator.kube.event_recorder import EventRecorder
from dtj_operator.kube.executor import PlanExecutor
from dtj_operator.kube.leases import LeaseClient
from dtj_operator.kube.login import Login
from dtj_operator.kube.observer import Key, Observer
from dtj_operator.kube.resources import JOB
from dtj_operator.leader.claims import Claims
from dtj_operator.leader.leadership import Alone, Leader, Leadership
from dtj_operator.leader.terms import Terms
from dtj_operator.metrics import Metrics
from dtj_operator.resync import Resync
from dtj_operator.watches import WatchState, ignore_unclosed_watches, watch
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
        asyncio.run(run(options, plan))
    except errors.OptionError as error:
        print(f"dtj-operator: {error}", file=sys.stderr)  # noqa: T201  there is no log yet
        return 2
    except errors.OperatorError as error:
        logger.error("%s", error)
        return 1
    return 0


async def run(options: settings.Options, planner: Planner) -> None:
    """Runs until SIGTERM or SIGINT. Raises OperatorError if the operator cannot continue."""
    asyncio.get_running_loop().set_exception_handler(ignore_unclosed_watches)
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
        self.queue: WorkQueue[Key] = WorkQueue(metrics)
        metrics.watch_depth(lambda: len(self.queue))
        self.leases = LeaseClient(login, metrics.request)
        self.leader = self._leader()
        self.client = Client(login, metrics.request, fence=self.leader.fence)
        self.agents = AgentClient(options.settings, count=lambda result: metrics.agent_polls.labels(result).inc())
        self.observer = Observer(self.client, self.agents)
        recorder = EventRecorder(self.client, socket.gethostname(), dropped=metrics.events_dropped.inc)
        executor = PlanExecutor(self.client, self.observer, recorder)
        self.controller = Controller(self.queue, self.observer, executor, planner, options.settings, metrics)
        self.watches = WatchState(self._changed, lambda plural: metrics.watch_events.labels(plural).inc())
        self.resync = Resync(
            self.client, self.queue, self.observer, self.watches, metrics, options.namespaces, options.resync_seconds
        )
        self.terms = Terms(
            self.leader,
            lambda: [self.controller.work() for _ in range(options.workers)],
            lambda: [self.resync.run()],
            self._term_ended,
        )
        self.server = HealthServer(options.metrics_port, metrics.text, (self._working, self._watching), (self._listed,))
        self._kopf: asyncio.Task[None] | None = None

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
                terms = group.create_task(self.terms.run(), name="terms")
                election = group.create_task(self.leader.run(), name="election")
                kopf_stop = asyncio.Event()
                kopf = watch(self.watches, self.login, self.options.namespaces, kopf_stop, self._on_signals)
                self._kopf = group.create_task(kopf, name="kopf")
                keys = group.create_task(self._watch_keys(), name="master key")
                await self.stop.wait()
                keys.cancel()
                await self._end(terms, election, self._kopf, kopf_stop)
        except* errors.OperatorError as failed:
            raise _first(failed) from None
        logger.info("stopped")

    async def close(self) -> None:
        """Releases the lease, if that has not been done, and closes every connection."""
        await self.leader.release()
        await self.server.stop()
        await self.agents.close()
        await self.client.close()
        await self.leases.close()

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
                await asyncio.wait_for(self.stop.wait(), CRD_RETRY_SECONDS)
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

    async def _end(
        self,
        terms: asyncio.Task[None],
        election: asyncio.Task[None],
        kopf: asyncio.Task[None],
        kopf_stop: asyncio.Event,
    ) -> None:
        """Closes the queue, lets reconciles in flight finish, releases the lease, and stops the rest."""
        drain_seconds = HAND_OVER_SECONDS if self.options.leader_election else DRAIN_SECONDS
        logger.info("stopping: reconciles in flight have %g s to finish", drain_seconds)
        self.queue.close()
        if cut_off := await self.terms.drain(drain_seconds):
            logger.warning("%d reconciles were cut off: the next operator repeats them", cut_off)
        terms.cancel()
        election.cancel()
        await asyncio.wait([terms, election])
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

    def _changed(self, key: Key) -> None:
        self.observer.invalidate(key)
        # A process that becomes the leader lists all jobs first.
        if self.leader.leads:
            self.queue.add(key)

    def _term_ended(self) -> None:
        """Forgets what the next leader knows better."""
        self.queue.clear()
        self.observer.keep_only(())
        self.metrics.all_job_phases({})

    # The checks of /healthz. None of them checks the API server, because a restart would not bring
    # it back.
    def _working(self) -> str | None:
        stuck = self.queue.longest_processing()
        return f"a reconcile has not finished after {stuck:.0f} s" if stuck > STUCK_SECONDS else None

    def _watching(self) -> str | None:
        if self._kopf is not None and self._kopf.done():
            return "no watch is running"
        if self.resync.stale:
            return "a watch has missed changes"
        return None

    def _listed(self) -> str | None:
        if self.options.leader_election and not self.leader.leads:
            # A standby is ready to take over.
            return None if self.leader.settled else "the lease of the leader election has not been read yet"
        return None if self.resync.listed else "the jobs have not been listed yet"


def _first(group: BaseExceptionGroup[errors.OperatorError]) -> errors.OperatorError:
    """Returns the first exception of a group, whose groups are those of nested tasks."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, errors.OperatorError)
    return found


if __name__ == "__main__":
    sys.exit(main())
