"""Trials as jobs of a cluster.

A trial is stopped by `spec.suspend`, so that it saves, frees its pods and keeps its status. The tuner changes no
other field of a job that exists, so that it conflicts with nobody who does.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dtj import yaml_text
from dtj.cluster.client import FIELD_MANAGER, Cluster, job_path
from dtj.errors import ClusterError, JobNotFound, NoCluster
from dtj.local.conditions import is_true
from dtj.tune.jobs import ended, last_step_time, measured, running_since
from dtj.tune.planner import Job, JobState
from dtj.tune.render import ANNOTATION_SWEEP_UID, LABEL_SWEEP, LABEL_TRIAL, job_name
from dtj.tune.spec import SweepDocument
from dtj_contract import names
from dtj_core.plan.model import Object

LOOK_SECONDS = 2.0
SILENT_SECONDS = 600.0
"""Time for which the API server may be silent, or answer that it is busy. The jobs run meanwhile."""


class ClusterTrialJobs:
    """Creates the jobs of trials on a cluster, and observes them by the sweep's label."""

    look_seconds = LOOK_SECONDS

    def __init__(self, cluster: Cluster, sweep: SweepDocument, uid: str, folder: Path) -> None:
        self._cluster = cluster
        self._sweep = sweep
        self._uid = uid
        self._best = folder / "best"
        given = ((sweep.spec.job or {}).get("metadata") or {}).get("namespace")
        self._namespace: str = cluster.given_namespace or given or cluster.namespace
        self._metric = sweep.spec.objective.metric
        self._known: dict[int, Object] = {}
        self._answered = time.monotonic()
        self._refused: float | None = None
        """Since when no write has succeeded."""

    def observe(self, numbers: Sequence[int]) -> Mapping[int, Job]:
        """Returns the jobs of these trials that exist, as they were last seen while the API server is silent."""
        is_silent = False
        if numbers:
            query = {"labelSelector": f"{LABEL_SWEEP}={self._sweep.name}"}
            try:
                found = self._cluster.json(job_path(self._namespace), query)["items"]
            except NoCluster:
                if time.monotonic() - self._answered > SILENT_SECONDS:
                    raise
                is_silent = True
            else:
                self._answered = time.monotonic()
                self._known = {int(job["metadata"]["labels"][LABEL_TRIAL]): job for job in found if self._is_own(job)}
        found = {number: self._observe(self._known[number]) for number in numbers if number in self._known}
        if is_silent:  # nobody knows whether a trial stands still
            return {number: replace(job, since=None) for number, job in found.items()}
        return found

    def start(self, number: int, job: Object) -> None:
        """Creates the job, or resumes it. Raises ClusterError if a job of that name belongs to someone else."""
        name = job_name(self._sweep.name, number)
        with self._repeated():
            if self._is_there(name):
                # Without the labels, which anybody can remove, the job would not be observed.
                labels = {LABEL_SWEEP: self._sweep.name, LABEL_TRIAL: str(number)}
                self._merge(name, {"metadata": {"labels": labels}, "spec": {"suspend": False}})
            else:
                self._create(job)

    def stop(self, number: int, job: Object) -> None:
        """Suspends the job: its pods get SIGTERM and their grace period."""
        if not self._known.get(number, {}).get("spec", {}).get("suspend"):
            with self._repeated():
                self._merge(job_name(self._sweep.name, number), {"spec": {"suspend": True}})

    def export(self, number: int, job: Object, details: Mapping[str, object]) -> None:
        """Writes job, parameters and the place of the newest checkpoint, which stays on the cluster's volume."""
        name = job_name(self._sweep.name, number)
        try:
            status = self._cluster.json(job_path(self._namespace, name)).get("status", {})
        except (NoCluster, JobNotFound):
            status = {}
        place = {
            "namespace": self._namespace,
            "volume": (job["spec"].get("checkpoint") or {}).get("volume"),
            "checkpoint": status.get("checkpoint"),
        }
        shutil.rmtree(self._best, ignore_errors=True)
        self._best.mkdir(parents=True)
        (self._best / "job.yaml").write_text(yaml_text.dump(job))
        (self._best / "best.json").write_text(json.dumps({**details, **place}, indent=2) + "\n")

    def _observe(self, job: Object) -> Job:
        step, value = measured(job, self._metric)
        if (outcome := ended(job, self._metric)) is not None:
            return outcome
        is_stopped = is_true(job, names.SUSPENDED) and job["spec"].get("suspend")
        if is_stopped and (other := _suspended_by(job)):
            message = f"{other} has set its spec.suspend, and it continues once that is false"
            return Job(state=JobState.PAUSED, step=step, value=value, message=message)
        if is_stopped:
            return Job(state=JobState.STOPPED, step=step, value=value)
        since = running_since(job)
        if since is not None:
            since = max(since, last_step_time(job) or since)
        return Job(state=JobState.ACTIVE, step=step, value=value, since=since)

    def _is_own(self, job: Object) -> bool:
        metadata = job["metadata"]
        uid = (metadata.get("annotations") or {}).get(ANNOTATION_SWEEP_UID)
        return uid == self._uid and metadata["labels"].get(LABEL_TRIAL, "").isdecimal()

    def _is_there(self, name: str) -> bool:
        """Returns whether the job exists. Raises ClusterError if it is not of this sweep."""
        try:
            existing = self._cluster.json(job_path(self._namespace, name))
        except JobNotFound:
            return False
        annotations: dict[str, Any] = existing["metadata"].get("annotations") or {}
        if annotations.get(ANNOTATION_SWEEP_UID) != self._uid:
            raise ClusterError(
                f"the job {name} exists and is not of this sweep: rename the sweep, or delete the jobs of an earlier "
                "one and their checkpoints, from which trials of the same names would resume: "
                f"kubectl delete {names.PLURAL} -n {quote(self._namespace)} -l {LABEL_SWEEP}={self._sweep.name}"
            )
        return True

    @contextlib.contextmanager
    def _repeated(self) -> Iterator[None]:
        """Leaves a write that has no answer to the next plan, which repeats it, unless none has succeeded for long."""
        try:
            yield
        except NoCluster:
            now = time.monotonic()
            self._refused = now if self._refused is None else self._refused
            if now - self._refused > SILENT_SECONDS:
                raise
        else:
            self._refused = None

    def _create(self, job: Object) -> None:
        body = copy.deepcopy(job)
        annotations = body["metadata"].get("annotations") or {}
        body["metadata"]["annotations"] = {**annotations, ANNOTATION_SWEEP_UID: self._uid}
        self._cluster.apply(body, self._namespace, force=False)

    def _merge(self, name: str, patch: Object) -> None:
        with contextlib.suppress(JobNotFound):  # deleted meanwhile, which the next look shows
            self._cluster.merge(name, self._namespace, patch)


def _suspended_by(job: Object) -> str | None:
    """Returns the manager that has set spec.suspend; None if it is the tuner, or nobody knows."""
    managers = [
        str(entry["manager"])
        for entry in job["metadata"].get("managedFields") or ()
        if "f:suspend" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return managers[0] if managers and FIELD_MANAGER not in managers else None
