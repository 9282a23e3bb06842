"""A sweep whose trials are jobs of a real API server. There is no operator, so the test writes the jobs' status."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dtj.cluster.client import Cluster
from dtj.errors import ClusterError
from dtj.tune import driver, spec
from dtj.tune.cluster_jobs import ClusterTrialJobs
from dtj.tune.engine import Engine, State
from dtj.tune.planner import JobState, TrialState
from dtj.tune.study import StudyStore
from hack.cluster.controlplane import ControlPlane
from tests.unit.client.support import JOBS, condition
from tests.unit.client.sweeps import sweep

pytestmark = pytest.mark.controlplane
WORST = 3
"""The trial that the pruner shall stop."""


class Killed(BaseException):
    """Ends a tuner at once, as no handler of the tuner catches it."""


class Operator:
    """Writes the status of jobs at each look of the tuner: some steps, then Complete; Suspended where that is asked."""

    def __init__(self, plane: ControlPlane, looks: int | None = None) -> None:
        self._plane = plane
        self._looks = looks

    def event(self, text: str) -> None:
        pass

    def show(self, state: State) -> None:
        if self._looks is not None:
            self._looks -= 1
            if self._looks < 0:
                raise Killed
        for job in self._plane.request("GET", JOBS)["items"]:
            self._advance(job)

    def _advance(self, job: dict[str, Any]) -> None:
        number = int(job["metadata"]["labels"]["training.dtj.dev/trial"])
        before = job.get("status") or {}
        step = (before.get("progress") or {}).get("step", 0) + 1
        value = 10.0 if number == WORST else 1.0 / step
        progress = {"step": step, "metrics": {"val_loss": value}}
        status: dict[str, Any] = {"phase": "Running", "progress": progress, "conditions": []}
        if [one["type"] for one in before.get("conditions") or ()] == ["Complete"]:
            return
        if job["spec"].get("suspend"):
            status = {**before, "phase": "Suspended", "conditions": [condition("Suspended")]}
        elif step > 4 and number != WORST:
            status["conditions"] = [condition("Complete")]
        job = {**job, "status": status}
        self._plane.request("PUT", f"{JOBS}/{job['metadata']['name']}/status", job)


def tuner(folder: Path, document: dict[str, Any]) -> tuple[Engine, StudyStore, ClusterTrialJobs]:
    parsed = spec.parse(document, "sweep.yaml")
    store = StudyStore(folder / "sweep.db", parsed)
    jobs = ClusterTrialJobs(Cluster(kubeconfig=None, context=None, namespace=None), parsed, store.uid, folder)
    jobs.look_seconds = 0.05
    return Engine(parsed, driver.limits_of(parsed, 2), store, jobs), store, jobs


def test_a_sweep_creates_adopts_and_suspends_jobs(cluster: ControlPlane, tmp_path: Path) -> None:
    document = sweep(trials=4, pruner={"name": "median", "startupTrials": 1, "minSteps": 1})
    engine, _, _ = tuner(tmp_path, document)
    with pytest.raises(Killed):
        engine.run(Operator(cluster, looks=4))
    before = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.request("GET", JOBS)["items"]}
    assert before, "the first tuner has created jobs"

    engine, store, _ = tuner(tmp_path, document)
    assert engine.run(Operator(cluster)) == "all 4 trials are finished"
    jobs = {job["metadata"]["name"]: job for job in cluster.request("GET", JOBS)["items"]}
    assert sorted(jobs) == [f"search-{number:04d}" for number in range(4)]
    assert {name: jobs[name]["metadata"]["uid"] for name in before} == before, "a job was created again"
    states = [one.trial.state for one in store.details()]
    assert states == [*[TrialState.COMPLETE] * 3, TrialState.PRUNED]
    assert [name for name, job in jobs.items() if job["spec"].get("suspend")] == ["search-0003"]
    assert store.details()[1].trial.value == pytest.approx(1.0 / 5)
    assert (tmp_path / "best/best.json").exists()


class Hanging(Operator):
    """Writes that trial 0 has run for long without a step, and that trial 1 waits in a queue for as long."""

    def _advance(self, job: dict[str, Any]) -> None:
        number = int(job["metadata"]["labels"]["training.dtj.dev/trial"])
        if number > 1 or job["spec"].get("suspend"):
            super()._advance(job)
            return
        running = {**condition("Running"), "lastTransitionTime": "2026-01-01T00:00:00Z"}
        if number == 1:
            running["status"] = "False"
            self.waited += 1
            if self.waited > 60:  # three seconds: beyond the deadline
                super()._advance(job)
                return
        status = {"phase": "Running", "conditions": [running]}
        self._plane.request("PUT", f"{JOBS}/{job['metadata']['name']}/status", {**job, "status": status})

    waited = 0


def test_a_job_that_runs_without_a_step_is_suspended_and_fails(cluster: ControlPlane, tmp_path: Path) -> None:
    engine, store, _ = tuner(tmp_path, sweep(trials=3, stepDeadlineSeconds=1))
    assert engine.run(Hanging(cluster)) == "all 3 trials are finished"
    assert [one.trial.state for one in store.details()] == [TrialState.FAILED, *[TrialState.COMPLETE] * 2]
    assert store.details()[0].message == "no new step for 1 s while its ranks ran (spec.stepDeadlineSeconds)"
    jobs = {job["metadata"]["name"]: job for job in cluster.request("GET", JOBS)["items"]}
    assert [name for name, job in jobs.items() if job["spec"].get("suspend")] == ["search-0000"]


def change(plane: ControlPlane, name: str, **fields: Any) -> None:
    """Changes fields of a job's spec as kubectl patch does."""
    job = plane.request("GET", f"{JOBS}/{name}")
    plane.request("PUT", f"{JOBS}/{name}?fieldManager=kubectl-patch", {**job, "spec": {**job["spec"], **fields}})


class Pausing(Operator):
    """Lets somebody suspend trial 0, and resume it after ten looks at it."""

    def __init__(self, plane: ControlPlane, looks: int | None = None) -> None:
        super().__init__(plane, looks)
        self.events: list[str] = []
        self.paused = self.most = 0

    def event(self, text: str) -> None:
        self.events.append(text)

    def show(self, state: State) -> None:
        super().show(state)
        self.most = max(self.most, len(state.jobs))
        job = state.jobs.get(0)
        if job is not None and job.state is JobState.PAUSED:
            self.paused += 1
            if self.paused == 10:
                change(self._plane, "search-0000", suspend=False)
        elif job is not None and not self.paused:
            change(self._plane, "search-0000", suspend=True)


def test_a_trial_that_somebody_suspends_waits_for_them(cluster: ControlPlane, tmp_path: Path) -> None:
    waits = "trial 0 waits: kubectl-patch has set its spec.suspend, and it continues once that is false"
    engine, _, _ = tuner(tmp_path, sweep(trials=3))
    with pytest.raises(Killed):
        engine.run(operator := Pausing(cluster, looks=8))
    assert operator.events.count(waits) == 1
    engine, store, _ = tuner(tmp_path, sweep(trials=3))
    assert engine.run(operator := Pausing(cluster)) == "all 3 trials are finished"
    assert operator.events.count(waits) == 1
    assert "trial 0 continues" not in operator.events
    assert operator.most == 2, "it keeps its room"
    assert store.details()[0].trial.value == pytest.approx(1.0 / 5)


class Changing(Operator):
    """Lets somebody keep more checkpoints of each trial."""

    def _advance(self, job: dict[str, Any]) -> None:
        if job["spec"]["checkpoint"]["keep"] != 9:
            checkpoint = {**job["spec"]["checkpoint"], "keep": 9}
            change(self._plane, job["metadata"]["name"], checkpoint=checkpoint)
            job = self._plane.request("GET", f"{JOBS}/{job['metadata']['name']}")
        super()._advance(job)


def test_a_field_that_somebody_changed_stays_and_stops_no_sweep(cluster: ControlPlane, tmp_path: Path) -> None:
    document = sweep(trials=4, pruner={"name": "median", "startupTrials": 1, "minSteps": 1})
    document["spec"]["job"]["spec"]["checkpoint"]["keep"] = 2
    engine, store, _ = tuner(tmp_path, document)
    assert engine.run(Changing(cluster)) == "all 4 trials are finished"
    assert [one.trial.state for one in store.details()] == [*[TrialState.COMPLETE] * 3, TrialState.PRUNED]
    jobs = {job["metadata"]["name"]: job for job in cluster.request("GET", JOBS)["items"]}
    assert {job["spec"]["checkpoint"]["keep"] for job in jobs.values()} == {9}
    assert [name for name, job in jobs.items() if job["spec"].get("suspend")] == ["search-0003"]


def test_a_job_of_another_sweep_is_not_taken_over(cluster: ControlPlane, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    engine, _, _ = tuner(tmp_path / "first", sweep(trials=1))
    with pytest.raises(Killed):
        engine.run(Operator(cluster, looks=3))
    created = copy.deepcopy(cluster.request("GET", f"{JOBS}/search-0000"))
    engine, _, _ = tuner(tmp_path / "second", sweep(trials=1))
    with pytest.raises(ClusterError, match="search-0000 exists and is not of this sweep: rename the sweep, or delete"):
        engine.run(Operator(cluster))
    assert cluster.request("GET", f"{JOBS}/search-0000")["spec"] == created["spec"]
