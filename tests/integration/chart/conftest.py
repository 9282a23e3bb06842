"""A real API server only for this folder.

The chart brings the CRD, so no other CRD may be there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from hack.cluster import gobuild, kind
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.chart.kit import NAMESPACE


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), tmp_path_factory.mktemp("plane"), audit_log=False) as plane:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        yield plane


Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kubectl(plane: ControlPlane) -> Kubectl:
    def call(*arguments: str, stdin: str = "", login: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(kind.program("kubectl")), "--kubeconfig", login or str(plane.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    return call
