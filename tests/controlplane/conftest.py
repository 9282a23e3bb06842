"""A real API server for all tests of this folder, a namespace of its own for each, and the operator as a real process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import CONTROL_PLANE
from tests.controlplane.support import Kubelet, Operator, eventually, grant

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.controlplane)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager, with our CRD."""
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), tmp_path_factory.mktemp("plane")) as plane:
        install_crds(plane)
        yield plane


def install_crds(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        plane.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"

        def established(where: str = where) -> bool:
            conditions = plane.request("GET", where)["status"].get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        eventually("the CRD is established", established)


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    """Fresh; the operator's service account may do there exactly what its table of rights says."""
    name = f"t{next(_numbers)}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    grant(plane, name)
    return name


@pytest.fixture
def start_operator(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Starts operator processes for the test's namespace; ends all of them after the test and reads their logs for bugs."""
    started: list[Operator] = []

    def start(*flags: str, **environ: str) -> Operator:
        operator = Operator(plane, namespace, tmp_path / f"operator-{len(started)}.log", flags, environ)
        started.append(operator)
        return operator

    yield start
    for operator in started:
        operator.kill()
    for operator in started:
        operator.check_log()


@pytest.fixture
def kubelet(plane: ControlPlane, namespace: str) -> Iterator[Kubelet]:
    """Makes the namespace's pods run, as far as the API shows."""
    with Kubelet(plane, namespace) as kubelet:
        yield kubelet


@pytest.fixture
def submit(plane: ControlPlane, namespace: str) -> Callable[..., Any]:
    """Creates a job; returns it."""

    def create(name: str = "j", **spec: Any) -> Any:
        body = {
            "apiVersion": "training.dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": 2, "image": "trainer:test", "backend": "gloo", "entrypoint": {"module": "m"}} | spec,
        }
        return plane.request("POST", f"/apis/training.dtj.dev/v1alpha1/namespaces/{namespace}/distributedtrainingjobs", body)

    return create
