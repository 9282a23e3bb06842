"""The loop of a local run: observe, plan, execute, like the operator, until the job has finished."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dtj.local import activity, container, pods, processes, scaling
from dtj.local.cluster import LocalCluster
from dtj.local.conditions import finished, is_true
from dtj.local.container import HostEnvironment
from dtj.local.faults import Fault, FaultInjector
from dtj.local.log_tail import LogTail
from dtj.local.loopback import Ports
from dtj.local.progress_estimator import ProgressEstimator
from dtj.local.reaper import ProcessReaper
from dtj.view.model import PodRow, Snapshot, View, restarts
from dtj_contract import names
from dtj_core.plan.model import Object, Observed, Plan

LOOK_SECONDS = 0.25  # an agent on loopback answers in a millisecond
FAULT_LOOK_SECONDS = 0.05  # while a fault is pending
PAUSE_SECONDS = 0.02  # the minimum between two looks
ROWS_SECONDS = 0.5  # between two looks through /proc for the table
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_DIGITS = re.compile(r"\d+")

Planner = Callable[[Object, Observed, float], Plan]


class StopRequest:
    """The user's request to stop: the first signal stops gracefully, the second immediately."""

    def __init__(self, view: View) -> None:
        self.signal: signal.Signals | None = None
        self.requested = asyncio.Event()
        self.kill_all: Callable[[], None] = lambda: None
        self._view = view

    def on_signal(self, number: signal.Signals) -> None:
        if self.signal is None:
            self.signal = number
            self._view.print_line(f"{number.name}: stopping all workers gracefully; a second signal stops them at once")
        else:
            self.kill_all()
        self.requested.set()

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.on_signal, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


class ViewUpdater:
    """Passes whatever is new in the cluster to the view."""

    def __init__(self, view: View, cluster: LocalCluster, tail: LogTail | None) -> None:
        self._view = view
        self._cluster = cluster
        self._tail = tail
        self._estimator = ProgressEstimator()
        self._events = 0
        self._rows: list[PodRow] = []
        self._rows_at = float("-inf")
        self._activity = ""
        self._activity_since = time.monotonic()

    def update(self, job: Object, asked: Sequence[str]) -> None:
        """Shows what was asked for from outside (faults, a size), new events, the progress and new log lines."""
        now = datetime.fromtimestamp(time.time(), UTC)
        new = self._cluster.events[self._events :]
        self._events += len(new)
        # Omit Created events: the Secret, the Service and the StatefulSet are files and processes
        # here.
        events = [f"{event.reason}: {event.message}" for event in new if event.reason != names.Reason.CREATED]
        for text in (*asked, *events):
            self._view.print_line(f"{now.astimezone():%H:%M:%S} {text}")
        if time.monotonic() - self._rows_at >= ROWS_SECONDS:
            self._rows, self._rows_at = _rows(self._cluster, restarts(job)), time.monotonic()
        busy = "" if finished(job) else activity.group_activity(self._cluster.agent)
        # A text that differs only in its numbers, as `left 12 s ago` does each second, is no news.
        if _DIGITS.sub("", busy) != _DIGITS.sub("", self._activity):
            self._activity_since = time.monotonic()
        self._activity = busy
        self._view.show(
            Snapshot(
                job=self._estimator.apply(job, self._cluster.agent),
                now=now,
                rows=self._rows,
                activity=busy,
                activity_seconds=time.monotonic() - self._activity_since,
            )
        )
        self.logs()

    def ended(self, job: Object) -> None:
        """Shows the final state of the run, without pods."""
        self._view.show(Snapshot(job=job, now=datetime.fromtimestamp(time.time(), UTC), rows=()))
        self.logs()

    def logs(self) -> None:
        """Shows the lines that workers have written since the last call."""
        for line in self._tail.lines() if self._tail else ():
            self._view.print_log(line)


async def run(
    job: Object,
    host: HostEnvironment,
    planner: Planner,
    *,
    faults: Sequence[Fault] = (),
    view: View,
    tail: LogTail | None = None,
) -> int:
    """Runs the job, and writes its status into `job`.

    Returns the exit code: 0 Complete, 1 Failed, 128 + n if signal n ended the run. `tail` reads the
    output of the workers that is shown. Raises LocalRunError and InputError. Whatever happens, no
    process of the job is left.
    """
    stop, injector = StopRequest(view), FaultInjector(faults)
    reaper = ProcessReaper(f"{host.job_uid}/", host.scratch_dir)
    with reaper, Ports() as ports, stop.handle_signals():
        async with LocalCluster(host, ports, now=_now) as cluster:
            stop.kill_all = cluster.kill
            updater = ViewUpdater(view, cluster, tail)
            saved = ""
            while not stop.requested.is_set() and not finished(job):
                asked = scaling.take_request(job, host.run_dir)
                observed = await cluster.observe(job)
                plan = planner(job, observed, time.time())
                await cluster.execute(job, plan)
                saved = _save(job, host.run_dir / "status.json", saved)
                updater.update(job, [*asked, *await injector.inject(cluster)])
                await asyncio.sleep(PAUSE_SECONDS)
                limit = FAULT_LOOK_SECONDS if injector.pending else LOOK_SECONDS
                due = limit if plan.requeue_after is None else min(limit, plan.requeue_after)
                await _wait_for_any(cluster.changed, stop.requested, seconds=due)
        updater.ended(job)
    for fault in injector.pending if finished(job) else ():
        view.print_line(f"--kill {fault}: the job ended before that step")
    if not finished(job) and stop.signal is not None:
        return 128 + stop.signal
    return 0 if is_true(job, names.COMPLETE) else 1


def _rows(cluster: LocalCluster, restarts: int) -> list[PodRow]:
    workers = processes.workers(f"{cluster.host.job_uid}/")
    return [
        PodRow(
            name=pod.object["metadata"]["name"],
            state=pods.pod_state(pod.object),
            pid=pod.pid,
            workers=workers.get(container.pod_tag(pod.object, cluster.host), {}),
            restarts=restarts,
        )
        for _, pod in sorted(cluster.pods.items())
    ]


async def _wait_for_any(*events: asyncio.Event, seconds: float) -> None:
    """Waits until one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _save(job: Object, path: Path, before: str) -> str:
    text = json.dumps(job, indent=2)
    if text != before:
        aside = path.with_suffix(".new")
        aside.write_text(text)
        os.replace(aside, path)
    return text


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)
