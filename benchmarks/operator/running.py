"""Jobs that run: what they cost the operator, and how old its knowledge is; silent agents; one large job."""

from __future__ import annotations

import os
import re
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from benchmarks.operator.agents import SILENT, Agents, address_of
from benchmarks.operator.creation import LONG, Children, create_all, job_name, running_times
from benchmarks.operator.kubelet import Kubelet
from benchmarks.operator.planes import Audit, cpu_seconds, fresh, memory_mib, resources, send, watch
from benchmarks.operator.status_floor import StatusFloor
from benchmarks.operator.systems import Ours
from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import wait_until

SETTLE_SECONDS = 30.0
"""After the last job has begun to run: as long as the slowest report."""
WINDOW_SECONDS = 81.0
"""Three times the 27 s after which the operator writes a progress again: each job counts as often."""
FLOOR_SETTLE_SECONDS, FLOOR_SECONDS = 5.0, 30.0
FAILURES = 20
BESIDE = 10
"""New jobs, one after the other, beside the silent ones."""
WAVE = 500
"""Jobs that are created at once where there are very many."""


@contextmanager
def operator(limits: str = "tuned", *more: str) -> Iterator[tuple[ControlPlane, Ours]]:
    """Starts a fresh control plane with our operator, which is ready."""
    with fresh(limits) as plane:
        system = Ours(plane, tuned=True)
        system.more = more
        system.start()
        try:
            system.ready()
            yield plane, system
        except AssertionError as error:
            raise AssertionError(f"{error}\n{system.tail()}") from error
        finally:
            system.end(9)


def metrics(system: Ours) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{system.port()}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


class Statuses:
    """Follows all jobs by one watch, and keeps how old the status of each was before it was written again."""

    def __init__(self, plane: ControlPlane, path: str) -> None:
        self._plane, self._path = plane, path
        self._stop = threading.Event()
        self._known: dict[str, float] = {}
        """Time of the step that the status has, by the uid of the job."""
        self.since = float("inf")
        """Only what is written after this Unix time counts."""
        self.ages: list[float] = []
        self.failed: dict[str, float] = {}
        """When the status first showed a failure, by uid."""
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Statuses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _follow(self) -> None:
        for event in watch(self._plane, self._path, self._stop):
            self._take(event["object"]["metadata"]["uid"], event["object"].get("status", {}), time.time())

    def _take(self, uid: str, status: Any, now: float) -> None:
        if status.get("failures"):
            self.failed.setdefault(uid, now)
        text = status.get("progress", {}).get("time")
        if text is None:
            return
        reported = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        before = self._known.get(uid)
        if before is not None and reported > before and now >= self.since:
            self.ages.append(now - before)
        self._known[uid] = reported

    def stalest(self) -> float:
        """Returns the age of the oldest progress that a status has now."""
        return time.time() - min(self._known.values())


def listening(jobs: int) -> dict[str, Any]:
    """Lets the agents of many jobs report each second: CPU, requests, and the age of what the status has."""
    with operator() as (plane, system), Agents() as agents, Kubelet(plane, address_of) as kubelet:
        audit = Audit(plane, system.user)
        with running_times(plane, system) as seen:
            began = time.time()
            create_all(plane, lambda name: agents.add(system.create(name)), jobs)
            wait_until("all jobs run", lambda: sum(name[0] == "b" for name in seen) == jobs, timeout=LONG, every=0.5)
            all_running = max(time_ for name, time_ in seen.items() if name[0] == "b") - began
        uids = [
            job["metadata"]["uid"]
            for job in send(plane, "GET", system.collection)["items"]
            if job["metadata"]["name"] != "warm-up"
        ]
        with Statuses(plane, system.collection) as statuses:
            time.sleep(SETTLE_SECONDS)
            statuses.since = start = time.time()
            cpu, agents_cpu = cpu_seconds(system.pid), cpu_seconds(agents.pid)
            servers = {name: cpu_seconds(pid) for name, pid in plane.pids.items()}
            lag = lag_above(metrics(system))
            time.sleep(WINDOW_SECONDS)
            end = time.time()
            took = end - start
            found = {
                "jobs": jobs,
                "cpu": (cpu_seconds(system.pid) - cpu) / took,
                "agents_cpu": (cpu_seconds(agents.pid) - agents_cpu) / took,
                "apiserver_cpu": (cpu_seconds(plane.pids["kube-apiserver"]) - servers["kube-apiserver"]) / took,
                "writes_per_second": len(audit.writes(start, end)) / took,
                "reads_per_second": len(audit.reads(start, end)) / took,
                "requests": dict(resources(audit.writes(start, end) + audit.reads(start, end))),
                "progress_age_median": statistics.median(statuses.ages),
                "progress_age_worst": max(*statuses.ages, statuses.stalest()),
                "rss": memory_mib(system.pid),
                "rss_peak": memory_mib(system.pid, "VmHWM"),
                "all_running": all_running,
                "pods_started": kubelet.started,
                "lag_above_50_ms": lag_above(metrics(system)) - lag,
            }
            delays = []
            for uid in uids[:: max(1, len(uids) // FAILURES)][:FAILURES]:
                failed = time.time()
                agents.fail(uid)
                wait_until("the failure is in the status", lambda uid=uid: uid in statuses.failed, every=0.005)
                delays.append(statuses.failed[uid] - failed)
        found |= {"failure_age_median": statistics.median(delays), "failure_age_worst": max(delays)}
        found["failure_ages"] = delays
        system.end(9)
        return found | floor(plane, system, found["writes_per_second"])


def floor(plane: ControlPlane, system: Ours, rate: float) -> dict[str, Any]:
    """Lets a client alone write as many statuses a second as the operator did, of the same jobs. Its CPU."""
    with StatusFloor(system.kubeconfig, rate) as client:
        time.sleep(FLOOR_SETTLE_SECONDS)
        audit = Audit(plane, system.user)
        audit.read()
        cpu, start = cpu_seconds(client.pid), time.time()
        time.sleep(FLOOR_SECONDS)
        end = time.time()
        writes = len(audit.writes(start, end))
        return {
            "floor_cpu": (cpu_seconds(client.pid) - cpu) / (end - start),
            "floor_writes_per_second": writes / (end - start),
        }


def many(jobs: int) -> dict[str, Any]:
    """Lets very many jobs run whose steps stand still: what they cost while nothing happens.

    Jobs are created in waves, because the API server renews no lease in time while all are created at once.
    """
    with operator() as (plane, system), Agents(still=True) as agents, Kubelet(plane, address_of):
        idle, audit = memory_mib(system.pid), Audit(plane, system.user)
        with running_times(plane, system) as seen:
            began = time.time()
            for first in range(0, jobs, WAVE):
                last = min(first + WAVE, jobs)
                create_all(plane, lambda name: agents.add(system.create(name)), last - first, first=first)
                wait_until(
                    "all jobs run", lambda n=last: sum(name[0] == "b" for name in seen) == n, timeout=LONG, every=1.0
                )
            took = time.time() - began
        time.sleep(2 * SETTLE_SECONDS)
        cpu, start = cpu_seconds(system.pid), time.time()
        time.sleep(WINDOW_SECONDS)
        end = time.time()
        return {
            "jobs": jobs,
            "seconds": took,
            "cpu": (cpu_seconds(system.pid) - cpu) / (end - start),
            "writes_per_second": len(audit.writes(start, end)) / (end - start),
            "reads_per_second": len(audit.reads(start, end)) / (end - start),
            "rss_idle": idle,
            "rss": memory_mib(system.pid),
            "rss_peak": memory_mib(system.pid, "VmHWM"),
        }


@contextmanager
def silence() -> Iterator[None]:
    """Holds the port of an agent that accepts connections and answers nothing."""
    with socket.socket() as listening_socket:
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening_socket.bind((SILENT, names.AGENT_PORT))
        # When this is full, the kernel drops further connections: silence of another kind.
        listening_socket.listen(64)
        yield


def beside_silent(jobs: int) -> dict[str, Any]:
    """Creates jobs, one after the other, beside many jobs whose pods run and whose agents are silent."""
    with operator() as (plane, system), silence(), Kubelet(plane, lambda _: SILENT) as kubelet:
        audit = Audit(plane, system.user)
        create_all(plane, system.create, jobs)
        wait_until("all pods run", lambda: kubelet.started >= 2 * jobs, timeout=LONG, every=0.5)
        time.sleep(10.0)
        cpu, start = cpu_seconds(system.pid), time.time()
        time.sleep(20.0)
        cpu = (cpu_seconds(system.pid) - cpu) / (time.time() - start)
        waits = Children(audit, system.children)
        waits.complete()
        delays = []
        for number in range(BESIDE):
            name = job_name(90000 + number)
            created = time.time()
            system.create(name)
            wait_until("its children exist", lambda name=name: waits.complete() and name in waits.last, every=0.02)
            known = waits.complete()
            wait_until("all of them", lambda known=known: waits.complete() >= known, every=0.02)
            delays.append(waits.last[name] - created)
        return {"jobs": jobs, "delay_median": statistics.median(delays), "delay_worst": max(delays), "cpu": cpu}


def large(pods: int) -> dict[str, Any]:
    """Starts one job of very many pods.

    The operator gets the processor before the control plane where root runs this: on two cores, its event loop
    would else be late because others run, and not because it is blocked.
    """
    with operator() as (plane, system), Agents() as agents, Kubelet(plane, address_of):
        prefer(system.pid)
        audit = Audit(plane, system.user)
        before = metrics(system)
        cpu = cpu_seconds(system.pid)
        with running_times(plane, system) as seen:
            began = time.time()
            name = job_name(0)
            job = send(plane, "POST", system.collection, system.job(name, replicas=pods))
            agents.add(job)
            wait_until("the job runs", lambda: name in seen, timeout=LONG, every=0.2)

        def ready() -> bool:
            status = send(plane, "GET", f"{system.collection}/{name}").get("status", {})
            return bool(status.get("ready") == f"{pods}/{pods}")

        wait_until("all pods are ready", ready, timeout=LONG, every=1.0)
        took = time.time() - began
        after = metrics(system)
        writes = [w for w in resources(audit.writes(began)).items() if w[0].endswith("/status")]
        return {
            "pods": pods,
            "seconds": took,
            "first_running": seen[name] - began,
            "status_writes": sum(count for _, count in writes),
            "writes": dict(resources(audit.writes(began))),
            "lag_above_50_ms": lag_above(after) - lag_above(before),
            "lag_above_100_ms": lag_above(after, 0.1) - lag_above(before, 0.1),
            "lag_worst_bucket": worst_bucket(before, after),
            "cpu": cpu_seconds(system.pid) - cpu,
            "rss": memory_mib(system.pid),
            "rss_peak": memory_mib(system.pid, "VmHWM"),
        }


def prefer(pid: int) -> None:
    """Lets all threads of a process go before those of others, if root asks for it."""
    if os.geteuid() == 0:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), -20)


LAG = re.compile(r'^dtj_event_loop_block_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


def lag_above(text: str, seconds: float = 0.05) -> int:
    """Returns how often the event loop was blocked for longer."""
    found = {float(bound): float(count) for bound, count in LAG.findall(text)}
    return int(found[float("inf")] - found[seconds])


def worst_bucket(before: str, after: str) -> float:
    """Returns the upper bound of the longest block of the event loop between two scrapes."""
    old = {float(bound): float(count) for bound, count in LAG.findall(before)}
    new = {float(bound): float(count) for bound, count in LAG.findall(after)}
    total = new[float("inf")] - old[float("inf")]
    return min(bound for bound in new if new[bound] - old[bound] >= total)
