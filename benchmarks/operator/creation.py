"""Creates many jobs at once: until each has its children, until each runs, and what a restarted operator does then."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from benchmarks.operator.agents import Agents, address_of
from benchmarks.operator.kubelet import Kubelet
from benchmarks.operator.planes import (
    NAMESPACE,
    Audit,
    answered,
    cpu_seconds,
    fresh,
    install,
    is_write,
    memory_mib,
    resources,
    send,
    watch,
)
from benchmarks.operator.systems import PEERS, ROOT, Ours, System
from dtj_contract import names
from dtj_core.plan import children
from dtj_core.plan.job import Job
from dtj_core.plan.model import Settings
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane.support import MASTER_KEY, wait_until

THREADS = 8
"""Of the client, which has no other limit."""
QUIET_SECONDS = 6.0
"""Until the operator has done what follows from the last child."""
WIDTH = 6
"""Characters of a job's name, with which the names of its children begin."""
LONG = 900.0
PLURALS = {
    "Secret": "secrets", "Service": "services", "StatefulSet": "statefulsets", "NetworkPolicy": "networkpolicies"
}  # fmt: skip


def job_name(number: int) -> str:
    return f"b{number:05}"


def create_all(
    plane: ControlPlane, make: Callable[[str], Any], count: int, *, first: int = 0
) -> dict[str, tuple[float, float]]:
    """Creates jobs by 8 threads, from number `first` on. Returns the Unix times around each create, by name."""

    def create(number: int) -> tuple[str, tuple[float, float]]:
        before = time.time()
        make(job_name(number))
        return job_name(number), (before, time.time())

    with ThreadPoolExecutor(THREADS) as pool:
        return dict(pool.map(create, range(first, first + count)))


class Children:
    """Follows the audit log until each job has the children that its operator creates."""

    def __init__(self, audit: Audit, expected: dict[str, int]) -> None:
        self._audit, self._expected = audit, expected
        self._found: dict[str, Counter[str]] = {}
        self.last: dict[str, float] = {}
        """When the last child of each job was created, in Unix time, by name."""

    def complete(self) -> int:
        """Returns the number of jobs that have all their children."""
        for event in self._audit.read():
            ref = event["objectRef"]
            if ref["resource"] in self._expected and event["responseStatus"].get("code") == 201 and is_write(event):
                name = ref["name"][:WIDTH]
                found = self._found.setdefault(name, Counter())
                found[ref["resource"]] += 1
                self.last[name] = max(self.last.get(name, 0.0), answered(event))
        return sum(1 for name, found in self._found.items() if name[0] == "b" and found >= Counter(self._expected))


def wait_quiet(audit: Audit) -> float:
    """Waits until the operator has written nothing for a while. Returns the Unix time of its last write."""

    def last() -> float:
        writes = [event for event in audit.calls if is_write(event)]
        return answered(writes[-1]) if writes else 0.0

    wait_until(
        "the operator is quiet", lambda: audit.read() == [] and time.time() > last() + QUIET_SECONDS, timeout=LONG
    )
    return last()


@contextmanager
def running_times(plane: ControlPlane, system: System) -> Iterator[dict[str, float]]:
    """Follows the jobs, and yields when each was first seen to run, in Unix time, by name."""
    stop, seen = threading.Event(), dict[str, float]()

    def follow() -> None:
        for event in watch(plane, system.collection, stop):
            name = event["object"]["metadata"]["name"]
            if name not in seen and system.is_running(event["object"]):
                seen[name] = time.time()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(10)


def measure(
    make: Callable[..., System], jobs: int, *, tuned: bool, run: bool = False, restart: bool = True
) -> dict[str, Any]:
    """Measures one operator once.

    kube-controller-manager has its own 20 requests a second, so that the pods take no part in the
    time, unless they are to run.
    """
    with fresh("tuned" if run else "shipped") as plane:
        system = make(plane, tuned=tuned)
        system.start()
        try:
            system.ready()
            found = _create(plane, system, jobs)
            if run:
                found |= _run(plane, system, jobs, found.pop("times"))
            found.pop("times", None)
            if restart:
                found |= _restart(plane, system)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{system.tail()}") from error
        finally:
            system.end(9)
        return found


def _create(plane: ControlPlane, system: System, jobs: int) -> dict[str, Any]:
    audit = Audit(plane, system.user)
    wait_quiet(audit)
    before = {name: cpu_seconds(pid) for name, pid in {**plane.pids, "operator": system.pid}.items()}
    idle = memory_mib(system.pid)
    audit.read()
    audit.calls.clear()
    waits = Children(audit, system.children)
    times = create_all(plane, system.create, jobs)
    client = max(after for _, after in times.values()) - min(first for first, _ in times.values())
    wait_until("each job has its children", lambda: waits.complete() == jobs, timeout=LONG, every=0.2)
    began = min(first for first, _ in times.values())
    each = [waits.last[name] - after for name, (_, after) in times.items()]
    time.sleep(QUIET_SECONDS)  # the pods may come for minutes, as kube-controller-manager is limited
    used = {
        name: cpu_seconds(pid) - before[name]
        for name, pid in {**plane.pids, "operator": system.pid}.items()
        if name != "guard"
    }
    writes = audit.writes()
    return {
        "times": times,
        "seconds": max(waits.last[name] for name in times) - began,
        "client_seconds": client,
        "each_median": statistics.median(each),
        "each_worst": max(each),
        "writes": len(writes) / jobs,
        "writes_by_resource": {k: v / jobs for k, v in resources(writes).items()},
        "reads": len(audit.reads()) / jobs,
        "rss_idle": idle,
        "rss_peak": memory_mib(system.pid, "VmHWM"),
        "cpu_ms": 1000 * used["operator"] / jobs,
        "cpu_others": {name: seconds for name, seconds in used.items() if name != "operator"},
    }


def _run(plane: ControlPlane, system: System, jobs: int, times: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Lets all pods run. Counts the writes about each job until its status shows that it runs."""
    audit = Audit(plane, system.user)
    with Agents() as agents, running_times(plane, system) as seen, Kubelet(plane, address_of):
        if isinstance(system, Ours):
            for job in send(plane, "GET", system.collection)["items"]:
                agents.add(job)
        wait_until("all jobs run", lambda: len(seen.keys() & times.keys()) == jobs, timeout=LONG, every=0.5)
        time.sleep(1.0)
        audit.read()
        before: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for event in audit.writes(min(first for first, _ in times.values())):
            name = event["objectRef"]["name"][:WIDTH]
            if name in times and answered(event) <= seen[name] + 0.05:
                before[name] += 1
                kinds.update(resources([event]))
        return {
            "running_writes": sum(before.values()) / jobs,
            "running_writes_worst": max(before.values()),
            "running_writes_by_resource": {k: v / jobs for k, v in kinds.items()},
            "rss_running": memory_mib(system.pid),
        }


def _restart(plane: ControlPlane, system: System) -> dict[str, Any]:
    """Restarts the operator, and creates a job as soon as it is accepted."""
    audit = Audit(plane, system.user)
    began = system.restart()
    audit.read()
    audit.calls.clear()
    waits = Children(audit, system.children)

    def accepted() -> bool:
        try:
            system.create("b99999")
        except ProvisionError:
            return False
        return True

    wait_until("the API server accepts a job", accepted, timeout=120)
    took = time.time() - began
    wait_until("the new job has its children", lambda: waits.complete() and "b99999" in waits.last, timeout=120)
    time.sleep(QUIET_SECONDS)
    cpu = cpu_seconds(system.pid)
    old = [event for event in audit.writes() if not event["objectRef"].get("name", "").startswith("b99999")]
    return {
        "restart_accepted": took,
        "restart_children": waits.last["b99999"] - began,
        "restart_old_writes": len(old),
        "restart_cpu": cpu,
    }


def floor(jobs: int) -> dict[str, Any]:
    """Creates the objects of our jobs without an operator: the job, its children and one status."""
    settings = Settings(agent_image="dtj-operator:test", master_key=MASTER_KEY, network_peers=tuple(PEERS))
    with fresh("shipped") as plane:
        install(plane, sorted((ROOT / "crds").glob("*.yaml")))
        before = {name: cpu_seconds(pid) for name, pid in plane.pids.items() if name != "guard"}
        last: dict[str, float] = {}

        def make(name: str) -> None:
            spec = {"replicas": 2, "image": "trainer:test", "backend": "gloo", "entrypoint": {"module": "m"}}
            metadata = {"name": name, "namespace": NAMESPACE}
            job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
            job = send(plane, "POST", Ours.collection, job)
            for child in children.all_children(Job.from_object(job), settings):
                version = child["apiVersion"]
                base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
                plural = PLURALS[child["kind"]]
                send(plane, "POST", f"{base}/namespaces/{NAMESPACE}/{plural}", child)
            last[name] = time.time()
            condition = {"type": "Running", "status": "False", "reason": "PodsPending", "message": "pods are starting"}
            stamp = {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
            status = {"phase": "Pending", "attempt": 1, "ready": "0/2", "conditions": [condition | stamp]}
            path = f"{Ours.collection}/{name}/status"
            send(plane, "PATCH", path, {"status": status}, "application/merge-patch+json")

        times = create_all(plane, make, jobs)
        began = min(first for first, _ in times.values())
        used = {name: cpu_seconds(pid) - before[name] for name, pid in plane.pids.items() if name != "guard"}
        return {"seconds": max(last.values()) - began, "cpu_others": used}
