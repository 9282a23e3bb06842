"""Runs each trial as a job of a cluster: a rank is a pod, and the link is the network between the pods."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from dtj import jobfile
from dtj.bench.launch import MODULE, TORCHRUN, Options, Outcome, reason
from dtj.bench.plan import PODS, PODS_OF_KIND, Cell
from dtj.cluster.client import Cluster
from dtj.cluster.logs import ended
from dtj.cluster.verbs import pods
from dtj.cluster.wait import condition_text, versions
from dtj.errors import ClusterError, InputError, JobNotFound, LocalRunError
from dtj_contract import names
from dtj_core.plan.model import Object

FIRST_RANK = "[rank 0] "
FACTS_SECONDS = 300.0
"""Of the first pod, whose node may have to pull the image."""
SPARE_SECONDS = 60
"""After which the cluster itself ends and removes the job of a dtj that was killed."""
LOG_SECONDS = 20.0
GONE_SECONDS, POLL_SECONDS = 120.0, 0.5


def reject_torchrun(arms: str) -> None:
    """Raises InputError if torchrun's arm is asked for by name, which a pod does not start."""
    if TORCHRUN in [part.strip() for part in arms.split(",")]:
        raise InputError(
            f"--arm {TORCHRUN}: in a pod, the agent has torchrun's place; leave it out, or measure it without "
            "--link cluster"
        )


class ClusterLauncher:
    """Submits a job for each trial, reads the figures from the output of rank 0, and deletes the job."""

    def __init__(self, cluster: Cluster, image: str, options: Options) -> None:
        self._cluster, self._image, self._options = cluster, image, options

    def facts(self) -> dict[str, Any]:
        """Returns what the image can run. Raises LocalRunError if it lacks the trainer library."""
        found = self._run(1, ["bench", "--facts"], FACTS_SECONDS)
        if found.figures is None:
            raise LocalRunError(
                f"--image {self._image}: {found.reason}; name an image with this version of dtj-trainer and torch"
            )
        return found.figures | {"gpus": 0, "arms": {k: v for k, v in found.figures["arms"].items() if k != TORCHRUN}}

    def share(self) -> str:
        """Returns what a rank has: on kind all nodes are one machine, whose cores the pods share."""
        try:
            nodes = self._cluster.json("/api/v1/nodes")["items"]
        except ClusterError:  # not everyone may list nodes
            return PODS
        providers = [str(node["spec"].get("providerID", "")) for node in nodes]
        return PODS_OF_KIND if any(provider.startswith("kind://") for provider in providers) else PODS

    def run(self, cell: Cell, *, nodes: Sequence[str] = (), cores: Sequence[int] = ()) -> Outcome:
        """Runs one trial. Its job is deleted at the end, which an exception may be.

        Args:
            cell: What is measured.
            nodes: None: the pods are where the scheduler puts them.
            cores: None: no pod is kept on a core.
        """
        options = self._options
        arguments = [
            MODULE[-1], "--arm", cell.arm, "--model", options.model, "--batch", str(cell.global_batch),
            "--steps", str(options.steps), "--warmup", str(options.warmup), "--threads", str(options.threads),
            "--out", "-",
        ]  # fmt: skip
        return self._run(cell.world, arguments, options.timeout)

    def _run(self, replicas: int, arguments: list[str], seconds: float) -> Outcome:
        job = trial_job(f"dtj-bench-{uuid.uuid4().hex[:12]}", self._image, replicas, arguments, seconds)
        jobfile.check(job, "dtj bench")
        name = job["metadata"]["name"]
        self._cluster.apply(job, self._cluster.namespace, force=False)
        try:
            last: Object | None = None
            for last in versions(self._cluster, name, time.monotonic() + seconds):
                if last is None or ended(last):
                    break
            if last is None:
                return Outcome(figures=None, reason=f"somebody has deleted its job {name}")
            if not ended(last):
                phase = last.get("status", {}).get("phase", "without a status")
                limit = f"not done after {seconds:g} s (--timeout)"
                return Outcome(figures=None, reason=f"{limit}; its job was {phase}", timed_out=True)
            return self._outcome(last)
        finally:
            self._remove(name)

    def _outcome(self, job: Object) -> Outcome:
        held = [one["type"] for one in job["status"]["conditions"] if one["status"] == "True"]
        if names.FAILED in held:
            tails = [str(one.get("logTail") or "") for one in job["status"].get("failures") or []]
            shown = reason("\n".join(tails)) if any(tails) else "no output"
            return Outcome(figures=None, reason=f"{condition_text(job, names.FAILED)}; {shown}")
        deadline = time.monotonic() + LOG_SECONDS
        while True:
            found = [line.removeprefix(FIRST_RANK) for line in self._output(job) if line.startswith(FIRST_RANK + "{")]
            if found:
                return Outcome(figures=json.loads(found[-1]))
            # While the container restarts, the output before that is for a moment nowhere.
            if time.monotonic() > deadline:
                return Outcome(figures=None, reason="rank 0 has printed no figures")
            time.sleep(POLL_SECONDS)

    def _output(self, job: Object) -> Iterator[str]:
        """Yields the lines of all pods, with those before a restart: an agent that is done is restarted, and idles."""
        for pod in pods(self._cluster, job["metadata"]["name"]):
            path = f"/api/v1/namespaces/{self._cluster.namespace}/pods/{pod['metadata']['name']}/log"
            for previous in ("true", "false"):
                query = {"container": names.CONTAINER, "previous": previous}
                # There may have been no restart, or no output yet.
                with suppress(ClusterError):
                    yield from self._cluster.lines(path, query, quiet_seconds=LOG_SECONDS)

    def _remove(self, name: str) -> None:
        """Deletes the job and waits until its pods are gone, because they would share the nodes with the next."""
        try:
            self._cluster.delete(name)
        except JobNotFound:
            return
        deadline = time.monotonic() + GONE_SECONDS
        while pods(self._cluster, name) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def trial_job(name: str, image: str, replicas: int, arguments: list[str], seconds: float) -> Object:
    """Returns the job of a trial (pure). A job whose dtj was killed ends and removes itself."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "image": image,
            "backend": "gloo",
            "entrypoint": {"module": MODULE[1], "args": arguments},
            "restart": {"maxRestarts": 0},
            "warmWorkers": "Never",
            "cleanPodPolicy": "None",
            "startupDeadlineSeconds": max(1, int(0.9 * seconds)),  # the job's message names what it waits for
            "activeDeadlineSeconds": int(seconds) + SPARE_SECONDS,
            "ttlSecondsAfterFinished": SPARE_SECONDS,
        },
    }
