"""A sweep whose job names a runtime: who can look it up, and how many ranks a trial has with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.cluster.client import Cluster
from dtj.errors import ClusterError
from hack.cluster.controlplane import ControlPlane
from tests.unit.client.sweeps import sweep

RUNTIMES = "/apis/training.dtj.dev/v1alpha1/distributedtrainingruntimes"
Dtj = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tune(dtj: Dtj, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Returns a function that runs `dtj tune` with a runtime, and returns the exit code and standard error."""

    def run(*flags: str, spec: dict[str, Any], **fields: Any) -> tuple[int, str]:
        document = sweep(**fields)
        document["spec"]["job"]["spec"] |= {"runtimeRef": {"name": "a100"}, **spec}
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(document))
        code, _, error = dtj("tune", tmp_path / "sweep.yaml", "--dir", tmp_path / "sweep", *flags)
        return code, error

    return run


@pytest.fixture
def runtime(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """Returns the API server with a runtime of 8 ranks in each pod."""
    metadata = {"name": "a100"}
    document = {"apiVersion": "training.dtj.dev/v1alpha1", "kind": "DistributedTrainingRuntime", "metadata": metadata}
    cluster.request("POST", RUNTIMES, {**document, "spec": {"processesPerPod": 8}})
    yield cluster
    cluster.request("DELETE", f"{RUNTIMES}/a100")


def test_a_runtime_is_rejected_without_a_cluster(tune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, error = tune(spec={})
    assert code == 2
    assert "spec.job.spec.runtimeRef: only a cluster has the runtime a100: write what it gives into spec.job" in error
    assert not (tmp_path / "sweep").exists()


@pytest.mark.controlplane
def test_the_ranks_of_a_trial_are_those_of_its_runtime(
    runtime: ControlPlane, tune: Callable[..., tuple[int, str]]
) -> None:
    code, error = tune("--cluster", spec={"replicas": 2}, maxRanks=15)
    assert code == 2
    assert "spec.maxRanks: 15 is less than the 16 ranks of one trial" in error
    code, error = tune("--cluster", spec={"replicas": 2, "processesPerPod": 4}, maxRanks=7)
    assert code == 2
    assert "spec.maxRanks: 7 is less than the 8 ranks of one trial" in error
    # The job's own GPUs count only where the runtime leaves the number open.
    code, error = tune("--cluster", spec={"resources": {"limits": {"nvidia.com/gpu": 2}}}, maxRanks=7)
    assert "spec.maxRanks: 7 is less than the 8 ranks of one trial" in error


@pytest.mark.controlplane
def test_a_runtime_that_does_not_exist_is_named(cluster: ControlPlane, tune: Callable[..., tuple[int, str]]) -> None:
    code, error = tune("--cluster", spec={}, maxRanks=8)
    assert code == 2
    assert "spec.job.spec.runtimeRef.name: there is no DistributedTrainingRuntime a100: kubectl get dtr" in error


@pytest.mark.controlplane
def test_a_runtime_that_may_not_be_read_asks_for_the_ranks(
    cluster: ControlPlane, tune: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise ClusterError("you cannot get resource distributedtrainingruntimes")

    monkeypatch.setattr(Cluster, "json", forbidden)
    code, error = tune("--cluster", spec={}, maxRanks=8)
    assert code == 2
    assert "can't be read (you cannot get resource distributedtrainingruntimes): write processesPerPod" in error
