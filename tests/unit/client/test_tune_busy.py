"""A sweep on a cluster outlives an API server that is busy, and reports one that stays so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtj.cluster.client import failure
from dtj.errors import Busy, ClusterError, NoCluster
from dtj.tune import cluster_jobs, spec
from dtj.tune.cluster_jobs import ClusterTrialJobs
from tests.unit.client.sweeps import sweep


@pytest.mark.parametrize(("status", "kind"), [(429, Busy), (500, Busy), (503, Busy), (400, ClusterError)])
def test_answer_that_asks_to_try_again_is_an_error_of_its_own(status: int, kind: type[ClusterError]) -> None:
    assert type(failure(status, b'{"message": "storage is (re)initializing"}', "https://h")) is kind


class BusyCluster:
    given_namespace = None
    namespace = "default"
    error: ClusterError | None = Busy("storage is (re)initializing")

    def json(self, path: str, query: dict[str, str] | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return {"items": [], "metadata": {"annotations": {}}}

    def merge(self, name: str, namespace: str, patch: Any) -> None:
        if self.error is not None:
            raise self.error


def test_sweep_outlives_a_busy_api_server_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = BusyCluster()
    jobs = ClusterTrialJobs(cluster, spec.parse(sweep(), "sweep.yaml"), "u", tmp_path)  # type: ignore[arg-type]
    assert jobs.observe([0]) == {}
    jobs.start(0, {})
    jobs.stop(0, {})
    monkeypatch.setattr(cluster_jobs, "SILENT_SECONDS", 0.0)
    for call in (lambda: jobs.observe([0]), lambda: jobs.start(0, {}), lambda: jobs.stop(0, {})):
        with pytest.raises(NoCluster, match="initializing"):
            call()
    cluster.error = None
    jobs.stop(0, {})
    cluster.error = Busy("again")
    monkeypatch.setattr(cluster_jobs, "SILENT_SECONDS", 600.0)
    jobs.stop(0, {})
