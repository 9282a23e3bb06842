"""`dtj bench --link cluster`: a job for each trial, its figures from the output of rank 0, and its removal."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj.bench import cluster as bench_cluster
from dtj.bench.cluster import ClusterLauncher
from dtj.bench.launch import Options
from dtj.bench.plan import PODS, PODS_OF_KIND, Cell
from dtj.cluster import verbs
from dtj.errors import ClusterError, JobNotFound, LocalRunError
from dtj.main import main

OPTIONS = Options(python="python3", model="mlp", steps=30, warmup=10, threads=1, timeout=60.0)
CELL = Cell(scaling="weak", link="cluster", batch=4, world=2, arm="fsdp2")
COMPLETE = {"conditions": [{"type": "Complete", "status": "True", "reason": "Succeeded", "message": "done"}]}
FAILED = {
    "conditions": [{"type": "Failed", "status": "True", "reason": "UsageError", "message": "rank 1 ended with 93"}],
    "failures": [{"logTail": "loading\nConfigError: --model vgg: write mlp, gpt, resnet\n"}],
}


class ClusterStub:
    """A cluster on which each job has this status at once."""

    namespace = "default"

    def __init__(self, status: dict[str, Any] | None, output: list[str], providers: list[str] | None = None) -> None:
        self.status, self.output, self.providers = status, output, providers
        self.jobs: dict[str, Any] = {}
        self.previous = "false"
        """Whether the output is that of a container before its restart."""
        self.applied: list[dict[str, Any]] = []

    def apply(self, job: dict[str, Any], namespace: str, *, force: bool) -> tuple[dict[str, Any], bool]:
        self.jobs[job["metadata"]["name"]] = job
        self.applied.append(job)
        return job, True

    def delete(self, name: str) -> None:
        if self.jobs.pop(name, None) is None:
            raise JobNotFound(name)

    def versions(self, name: str, seconds: float) -> Iterator[dict[str, Any] | None]:
        if self.status is None:
            self.jobs.pop(name)
            yield None
        else:
            yield self.jobs[name] | {"status": self.status}

    def json(self, path: str, query: dict[str, str] | None = None) -> dict[str, Any]:
        if path.endswith("/nodes"):
            if self.providers is None:
                raise ClusterError("forbidden")
            return {"items": [{"spec": {"providerID": provider}} for provider in self.providers]}
        alive = self.jobs and path.endswith("/pods")
        container = {"name": "trainer", "restartCount": 0, "state": {"running": {}}}
        pods = [
            {
                "metadata": {"name": f"j-{at}", "uid": str(at), "labels": {}},
                "status": {"containerStatuses": [container]},
            }
            for at in range(2 if alive else 0)
        ]
        return {"items": pods}

    def lines(self, path: str, query: dict[str, str], *, quiet_seconds: float) -> Iterator[str]:
        if query["previous"] != self.previous:
            if query["previous"] == "true":
                raise ClusterError("previous terminated container not found")
            return
        yield from self.output if path.endswith("/j-1/log") else []


def launcher(stub: Any) -> ClusterLauncher:
    return ClusterLauncher(stub, "dtj-trainer:cpu", OPTIONS)


@pytest.mark.parametrize("previous", ["false", "true"])
def test_figures_are_those_that_rank_0_prints(previous: str) -> None:
    stub = ClusterStub(
        COMPLETE, ["[rank 0] step=10", '[rank 1] {"x": 1}', '[rank 0] {"step_seconds": 0.5}', "[rank 0] "]
    )
    stub.previous = previous
    assert launcher(stub).run(CELL).figures == {"step_seconds": 0.5}
    (job,) = stub.applied
    arguments = job["spec"]["entrypoint"]["args"]
    assert (job["spec"]["replicas"], job["spec"]["image"]) == (2, "dtj-trainer:cpu")
    assert arguments[arguments.index("--batch") + 1] == "8"
    assert arguments[-2:] == ["--out", "-"]
    # A job whose dtj was killed ends, and is removed.
    assert job["spec"]["activeDeadlineSeconds"] == 120
    assert job["spec"]["ttlSecondsAfterFinished"] == 60
    assert stub.jobs == {}


def test_failed_job_is_a_failed_trial_with_its_reason() -> None:
    stub = ClusterStub(FAILED, [])
    found = launcher(stub).run(CELL)
    assert (found.figures, found.timed_out) == (None, False)
    assert found.reason == ("UsageError: rank 1 ended with 93; ConfigError: --model vgg: write mlp, gpt, resnet")
    assert stub.jobs == {}


def test_job_that_does_not_end_is_removed_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(step=20.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    stub = ClusterStub({"phase": "Pending", "conditions": []}, [])
    found = launcher(stub).run(CELL)
    assert found.timed_out
    assert found.reason == "not done after 60 s (--timeout); its job was Pending"
    assert stub.jobs == {}


@pytest.mark.parametrize(
    ("status", "output", "reason"),
    [
        (None, [], "somebody has deleted its job dtj-bench-"),
        (COMPLETE, ["[rank 0] done"], "rank 0 has printed no figures"),
    ],
)
def test_trial_without_figures_has_failed(
    status: dict[str, Any] | None, output: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_cluster, "LOG_SECONDS", -1.0)
    found = launcher(ClusterStub(status, output)).run(CELL)
    assert found.figures is None
    assert found.reason.startswith(reason)


def test_interrupted_trial_removes_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ClusterStub(COMPLETE, [])

    def interrupted(*_: object) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(bench_cluster, "versions", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launcher(stub).run(CELL)
    assert len(stub.applied) == 1
    assert stub.jobs == {}


def test_facts_of_an_image_have_no_torchrun() -> None:
    facts = {"torch": "2.13", "device": "a CPU", "gpus": 4, "arms": {"torchrun-ddp": True, "fsdp2": True}}
    found = launcher(ClusterStub(COMPLETE, ["[rank 0] " + json.dumps(facts)])).facts()
    assert (found["torch"], found["arms"], found["gpus"]) == ("2.13", {"fsdp2": True}, 0)


def test_image_without_the_trainer_library_is_named() -> None:
    with pytest.raises(LocalRunError, match=r"--image dtj-trainer:cpu: UsageError.*; name an image with this version"):
        launcher(ClusterStub(FAILED, [])).facts()


@pytest.mark.parametrize(
    ("providers", "share"),
    [(["kind://docker/dtj/dtj-worker"], PODS_OF_KIND), (["aws:///eu/i-0"], PODS), ([""], PODS), (None, PODS)],
)
def test_nodes_of_kind_are_one_machine(providers: list[str] | None, share: str) -> None:
    assert launcher(ClusterStub(COMPLETE, [], providers)).share() == share


class Stopped(ClusterStub):
    """A cluster that has facts for the first job; during the second, dtj gets SIGTERM."""

    host = "https://cluster"

    def versions(self, name: str, seconds: float) -> Iterator[dict[str, Any] | None]:
        if len(self.applied) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from super().versions(name, seconds)


def test_sigterm_removes_the_job_of_the_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = {"torch": "2.13", "device": "a CPU", "gpus": 0, "arms": {}, "strategies": ["ddp"]}
    stub = Stopped(COMPLETE, ["[rank 0] " + json.dumps(facts)])
    monkeypatch.setattr(verbs, "connect", lambda flags: stub)
    before = signal.getsignal(signal.SIGTERM)
    place = ["--link", "cluster", "--image", "dtj-trainer:cpu", "-o", str(tmp_path)]
    assert main(["bench", *place, "--world", "1", "--strategy", "ddp", "--arm", "ours"]) == 130
    assert len(stub.applied) == 2
    assert stub.jobs == {}
    assert signal.getsignal(signal.SIGTERM) is before
