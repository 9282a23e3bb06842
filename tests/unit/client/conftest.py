"""Fixtures of the client's tests.

`start` runs `dtj run` in its own folder, and ends it with all its processes after the test.
`cluster` is a real API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj.main import main
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.controlplane.conftest import install_crds
from tests.lib.waiting import wait_until
from tests.unit.client.support import JOBS, LocalRun, job_yaml


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LocalRun]]:
    runs: list[LocalRun] = []

    def start(*flags: str, **options: Any) -> LocalRun:
        runs.append(LocalRun(options.pop("folder", tmp_path), *flags, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


@pytest.fixture(scope="package")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture
def bare(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    """Returns the API server, perhaps without the CRD."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    return plane


@pytest.fixture
def cluster(bare: ControlPlane) -> Iterator[ControlPlane]:
    """Returns the API server with the CRD; deletes all jobs after the test."""
    if not bare.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
        install_crds(bare)
    yield bare
    bare.request("DELETE", JOBS)
    wait_until("no job is left", lambda: not bare.request("GET", JOBS)["items"])


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(job_yaml())
    return path


@pytest.fixture
def dtj(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Returns a function that runs a command and returns (exit code, standard output, standard error)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run
