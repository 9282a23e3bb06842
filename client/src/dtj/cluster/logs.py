"""`dtj logs`: the output of a job's workers, from all pods at once.

Once the pods are gone, the evidence in the job's status takes its place.
"""

from __future__ import annotations

import argparse
import heapq
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator

from dtj import durations
from dtj.cluster.client import Cluster
from dtj.cluster.verbs import connect, pods
from dtj.cluster.wait import condition_text
from dtj.errors import ClusterError, DtjError, JobNotFound
from dtj_contract import names
from dtj_core.api import find_trainer_container
from dtj_core.api.claim_template import claim_name
from dtj_core.plan import runtimes
from dtj_core.plan.model import Object

LOOK_SECONDS = 2.0  # between two looks for new pods
QUIET_SECONDS = 3600.0  # of silence, before reconnecting
TERMINAL = (names.COMPLETE, names.FAILED)

Line = tuple[str, str, str]
"""Timestamp (sorts as text), pod, text."""
Life = tuple[str, int]
"""uid of a pod and restart count of its container: they identify a log stream."""


def logs(flags: argparse.Namespace) -> int:
    """Prints the logs. Raises DtjError."""
    since = max(1, round(durations.parse(flags.since, "--since"))) if flags.since else None
    cluster = connect(flags)
    job = runtimes.effective(cluster.get(flags.name))
    container = find_trainer_container(job["spec"].get("template") or {}).get("name", names.CONTAINER)
    query = {"container": container, "timestamps": "true"}
    if flags.tail is not None:
        query["tailLines"] = str(flags.tail)
    if since is not None:
        query["sinceSeconds"] = str(since)
    started = [pod for pod in _wanted(cluster, flags) if _instance(pod, container)]
    if not started and ended(job):
        return _afterwards(job, cluster.namespace)
    if flags.follow:
        if not started:
            print(
                f"dtj: waiting for a pod of {flags.name} to start; {_look(cluster, flags.name)} shows why",
                file=sys.stderr,
            )
        source = Followed(cluster, flags, query).lines()
    else:
        source = heapq.merge(*(_read(cluster, pod, query) for pod in started))
        if not started:
            look = _look(cluster, flags.name)
            print(f"dtj: no pod of {flags.name} has started yet; {look} shows why, dtj logs -f waits", file=sys.stderr)
    for _, pod, text in source:
        if flags.rank is None or text.startswith(f"[rank {flags.rank}] "):
            print(f"{pod} {text}", flush=flags.follow)
    return 0


def read_lines(cluster: Cluster, job: Object) -> list[Iterator[Line]]:
    """Returns the lines of each pod of a job that has started."""
    template = runtimes.effective(job)["spec"].get("template") or {}
    container = find_trainer_container(template).get("name", names.CONTAINER)
    query = {"container": container, "timestamps": "true"}
    started = [pod for pod in pods(cluster, job["metadata"]["name"]) if _instance(pod, container)]
    return [_read(cluster, pod, query) for pod in started]


def ended(job: Object) -> bool:
    """Returns whether the job is Complete or Failed."""
    return any(c["type"] in TERMINAL and c["status"] == "True" for c in job.get("status", {}).get("conditions") or [])


class Followed:
    """The lines of all pods as they arrive, through container restarts and new pods.

    Ends when the job has finished.
    """

    def __init__(self, cluster: Cluster, flags: argparse.Namespace, query: dict[str, str]) -> None:
        self._cluster = cluster
        self._flags = flags
        self._query = query
        self._lines: queue.SimpleQueue[Line | DtjError] = queue.SimpleQueue()
        self._followed: dict[Life, threading.Thread] = {}
        self._last: dict[Life, str] = {}
        """Timestamp of the last line of each."""
        self._looked = False

    def lines(self) -> Iterator[Line]:
        """Yields every line until the job has finished and all its output was read."""
        over = False
        while not over:
            over = self._gone()
            for pod in _wanted(self._cluster, self._flags):
                self._follow(pod)
            self._looked = True
            yield from self._given(LOOK_SECONDS)

    def _given(self, seconds: float) -> Iterator[Line]:
        """Yields the lines that arrive within `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
                if isinstance(line, DtjError):
                    raise line
                yield line
        except queue.Empty:
            return

    def _gone(self) -> bool:
        try:
            return ended(self._cluster.get(self._flags.name))
        except JobNotFound:
            return True

    def _follow(self, pod: Object) -> None:
        """Starts a thread for each life of each container.

        A log stream ends with its container's life, or (a proxy, a long silence) before that.
        """
        container = self._query["container"]
        life = _instance(pod, container)
        before = self._followed.get(life) if life else None
        if life is None or (before and (before.is_alive() or not _runs(pod, container))):
            return
        # --tail and --since apply to output from before the command started.
        first = not self._looked
        query = {**(self._query if first else {"container": container, "timestamps": "true"}), "follow": "true"}
        if life in self._last:
            query["sinceTime"] = self._last[life]
        thread = threading.Thread(target=self._read, args=(life, pod, query), daemon=True)
        self._followed[life] = thread
        thread.start()

    def _read(self, life: Life, pod: Object, query: dict[str, str]) -> None:
        shown = self._last.get(life, "")
        try:
            for line in _read(self._cluster, pod, query):
                if line[0] > shown:  # sinceTime has whole seconds
                    self._last[life] = line[0]
                    self._lines.put(line)
        except DtjError as error:
            self._lines.put(error)  # for the thread that prints


def _wanted(cluster: Cluster, flags: argparse.Namespace) -> list[Object]:
    found = pods(cluster, flags.name)
    if flags.pod is None:
        return found
    return [pod for pod in found if pod["metadata"]["labels"].get(names.LABEL_POD_INDEX) == str(flags.pod)]


def _runs(pod: Object, container: str) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return any(status["name"] == container and "running" in status["state"] for status in statuses)


def _instance(pod: Object, container: str) -> Life | None:
    """Returns the container's current life if it has any output, or None before its first start."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status["name"] == container and ("waiting" not in status["state"] or status["restartCount"]):
            return pod["metadata"]["uid"], status["restartCount"]
    return None


def _read(cluster: Cluster, pod: Object, query: dict[str, str]) -> Iterator[Line]:
    """Yields a pod's lines with their times; none if the pod is gone or its container has not started."""
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/log"
    try:
        for line in cluster.lines(path, query, quiet_seconds=QUIET_SECONDS):
            written, _, text = line.partition(" ")
            yield written, name, text
    except JobNotFound:
        return
    except ClusterError as error:
        if "waiting to start" not in str(error):
            raise


def _look(cluster: Cluster, name: str) -> str:
    """Returns the command that shows a job's reason."""
    return f"`dtj get {name} -n {cluster.namespace} -o wide`"


def _afterwards(job: Object, namespace: str) -> int:
    """Prints the evidence in the status, and where the whole logs are, after the pods are gone.

    Returns 1 if there never was a log.
    """
    name = job["metadata"]["name"]
    status = job["status"]
    if not status.get("attempt") and not status.get("failures"):
        kind = next(c["type"] for c in status["conditions"] if c["type"] in TERMINAL and c["status"] == "True")
        why = condition_text(job, kind)
        print(f"dtj: {name} has no logs: the job is {kind}, and no worker ever ran: {why}", file=sys.stderr)
        return 1
    lines: Iterable[str] = _evidence(job)
    for line in lines:
        print(line)
    checkpoint = job["spec"].get("checkpoint")
    volume = (checkpoint or {}).get("volume")
    if volume:
        claim = claim_name(name) if "claimTemplate" in volume else volume.get("claimName")
        where = f"claim {claim}" if claim else f"the volume {volume}"
        folder = f"{namespace}/{name}/{names.LOG_FOLDER}/"
        print(f"dtj: the pods of {name} are gone; the whole logs are on {where}, in {folder}", file=sys.stderr)
    else:
        print(
            f"dtj: the pods of {name} are gone, and their logs with them; a job with spec.checkpoint keeps its logs",
            file=sys.stderr,
        )
    return 0


def _evidence(job: Object) -> Iterator[str]:
    for failure in job.get("status", {}).get("failures") or []:
        who = f"rank {failure['rank']} " if failure.get("rank") is not None else ""
        cause = f"{failure.get('reason')}: {failure.get('message')}"
        yield f"{failure.get('pod')} attempt {failure.get('attempt')} {who}{cause}"
        for line in str(failure.get("logTail") or "").splitlines():
            yield f"{failure.get('pod')} {line}"
