"""`dtj-operator`: puts the parts together, runs them, and ends them in order on SIGTERM."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import signal
import socket
import sys
import time
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
from dtj_operator.kube.login import Login
from dtj_operator.kube.observer import Key, Observer
from dtj_operator.kube.resources import JOB
from dtj_operator.metrics import Metrics
from dtj_operator.resync import Resync
from dtj_operator.watches import WatchState, ignore_unclosed_watches, watch
from dtj_operator.workqueue import WorkQueue

DRAIN_SECONDS = 10.0
KOPF_STOP_SECONDS = 5.0
KEY_SECONDS = 10.0  # between two looks at the mounted master key; the kubelet itself takes up to two minutes
CRD_RETRY_SECONDS = 2.0
STUCK_SECONDS = 120.0  # twice the deadline of a reconcile
CRD_MISSING = (
    f"the API server serves no {names.PLURAL} in {names.API_VERSION}; install the CRD: "
    "the chart does it, or kubectl apply --server-side -f crds/"
)

logger = logging.getLogger("dtj_operator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 after SIGTERM, 1 if something it needs is gone, 2 if it was started wrongly."""
    try:
        options = settings.parse(sys.argv[1:] if arguments is None else arguments)
        logs.set_up(options.log_format, options.log_level)
        asyncio.run(run(options, plan))
    except errors.OptionError as error:
        print(f"dtj-operator: {error}", file=sys.stderr)  # noqa: T201  before there is a log, and for a person
        return 2
    except errors.OperatorError as error:
        logger.error("%s", error)
        return 1
    return 0


async def run(options: settings.Options, planner: Planner) -> None:
    """Until SIGTERM or SIGINT. Raises OperatorError if it can't go on."""
    asyncio.get_running_loop().set_exception_handler(ignore_unclosed_watches)
    login = Login(options.kubeconfig, options.context)
    await login.load()
    operator = Operator(options, planner, login)
    try:
        await operator.run()
    finally:
        await operator.close()


class Operator:
    """One running operator: everything it is made of, with no globals. To be made on the event loop that runs it."""

    def __init__(self, options: settings.Options, planner: Planner, login: Login) -> None:
        self.options = options
        self.login = login
        self.stop = asyncio.Event()
        self.version = importlib.metadata.version("dtj-operator")
        metrics = self.metrics = Metrics(self.version)
        self.queue: WorkQueue[Key] = WorkQueue(metrics)
        metrics.watch_depth(lambda: len(self.queue))
        self.client = Client(login, metrics.request)
        self.agents = AgentClient(options.settings, count=lambda result: metrics.agent_polls.labels(result).inc())
        self.observer = Observer(self.client, self.agents)
        recorder = EventRecorder(self.client, socket.gethostname(), dropped=metrics.events_dropped.inc)
        executor = PlanExecutor(self.client, self.observer, recorder)
        self.controller = Controller(self.queue, self.observer, executor, planner, options.settings, metrics)
        self.watches = WatchState(self._changed, lambda plural: metrics.watch_events.labels(plural).inc())
        self.resync = Resync(
            self.client, self.queue, self.observer, self.watches, metrics, options.namespaces, options.resync_seconds
        )
        self.server = HealthServer(options.metrics_port, metrics.text, (self._working, self._watching), (self._listed,))
        self._kopf: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Raises OperatorError if it ends before it is told to."""
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
                workers = [group.create_task(self.controller.work(), name=f"worker {i}") for i in range(self.options.workers)]
                resync = group.create_task(self.resync.run(), name="resync")
                kopf_stop = asyncio.Event()
                kopf = watch(self.watches, self.login, self.options.namespaces, kopf_stop, self._on_signals)
                self._kopf = group.create_task(kopf, name="kopf")
                keys = group.create_task(self._watch_keys(), name="master key")
                await self.stop.wait()
                keys.cancel()
                await self._end(workers, resync, self._kopf, kopf_stop)
        except* errors.OperatorError as failed:
            raise failed.exceptions[0] from None
        logger.info("stopped")

    async def close(self) -> None:
        """Close every connection."""
        await self.server.stop()
        await self.agents.close()
        await self.client.close()

    async def _crd(self) -> bool:
        """Wait for the CRD; False if we are told to stop meanwhile. Raises NotServed."""
        deadline = time.monotonic() + self.options.crd_wait_seconds
        told = False
        while not self.stop.is_set():
            try:
                if await self.client.serves(JOB):
                    return True
                said = CRD_MISSING
            except errors.KubeError as error:
                said = f"the API server can't be asked for its resources: {error}"
            if time.monotonic() > deadline:
                raise errors.NotServed(said)
            if not told:
                logger.warning("%s; waiting %g s for it", said, self.options.crd_wait_seconds)
                told = True
            try:
                await asyncio.wait_for(self.stop.wait(), CRD_RETRY_SECONDS)
            except TimeoutError:
                pass
        return False

    async def _watch_keys(self) -> None:
        """Ends the operator when the master key is replaced: the kubelet starts it again, and it reads the new one."""
        known = self.options.settings
        refused = ""
        while True:
            await asyncio.sleep(KEY_SECONDS)
            try:
                keys = self.options.read_keys()
            except errors.OptionError as error:  # it would not start with these
                if str(error) != refused:
                    logger.error("the master key was replaced by one that is not taken: %s", error)
                refused = str(error)
                continue
            if keys != (known.master_key, known.previous_master_key):
                logger.info("the master key was replaced: stopping, to be started again with the new one")
                self.stop.set()
                return

    async def _end(
        self,
        workers: list[asyncio.Task[None]],
        resync: asyncio.Task[None],
        kopf: asyncio.Task[None],
        kopf_stop: asyncio.Event,
    ) -> None:
        """Take no more work, let what is under way end, then the rest."""
        logger.info("stopping: reconciles that are under way have %g s", DRAIN_SECONDS)
        self.queue.close()
        resync.cancel()
        _, late = await asyncio.wait(workers, timeout=DRAIN_SECONDS)
        for worker in late:
            worker.cancel()
        if late:
            logger.warning("%d reconciles were cut off: the next operator does them again", len(late))
        # Before kopf: it takes every task that is younger than it, a connection's too, for its own and waits for it.
        await self.server.stop()
        kopf_stop.set()
        _, late = await asyncio.wait([kopf], timeout=KOPF_STOP_SECONDS)
        for task in late:
            logger.warning("kopf did not end in %g s", KOPF_STOP_SECONDS)
            task.cancel()

    def _on_signals(self) -> None:
        """kopf takes the signals for itself when it starts: called again then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    def _changed(self, key: Key) -> None:
        self.observer.invalidate(key)
        self.queue.add(key)

    # The checks of /healthz. The API server being away is none of them: a restart would not bring it back.
    def _working(self) -> str | None:
        stuck = self.queue.longest_processing()
        return f"a reconcile has not ended in {stuck:.0f} s" if stuck > STUCK_SECONDS else None

    def _watching(self) -> str | None:
        if self._kopf is not None and self._kopf.done():
            return "no watch is running"
        if self.resync.stale:
            return "a watch has missed changes"
        return None

    def _listed(self) -> str | None:
        return None if self.resync.listed else "the jobs have not been listed yet"


if __name__ == "__main__":
    sys.exit(main())
