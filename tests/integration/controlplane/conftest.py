"""A real API server for all tests of this folder, a namespace for each, and the operator as a process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_contract import names
from dtj_operator import rbac
from dtj_operator.leader.claims import claim_name
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.controlplane import crds
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import (
    CLAIMS,
    Agents,
    Objects,
    Operator,
    bind,
    grant,
    running,
    wait_until,
)

ROOT = Path(__file__).parents[3]
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.controlplane)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Shows the namespace and the operators' logs after a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        funcargs = getattr(item, "funcargs", {})
        for path in sorted(funcargs["tmp_path"].glob("*.log")) if "tmp_path" in funcargs else ():
            report.sections.append((path.name, path.read_text()[-8000:]))
        if "objects" in funcargs:
            report.sections.append(("objects", funcargs["objects"].dump()))
    return report


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Returns etcd, kube-apiserver and kube-controller-manager, with our CRD."""
    with ControlPlane(gobuild.bin_folder(CONTROL_PLANE), tmp_path_factory.mktemp("plane")) as plane:
        install_crds(plane)
        yield plane


def install_crds(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crds.install(plane, yaml.safe_load(path.read_text()))


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    """Returns a fresh namespace, with a service account that has exactly the operator's rights there."""
    name = f"t{next(_numbers)}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    grant(plane, name)
    return name


@pytest.fixture
def objects(plane: ControlPlane, namespace: str) -> Objects:
    """Returns the test's namespace, as the administrator sees it."""
    return Objects(plane, namespace)


@pytest.fixture
def start_operator(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Starts operator processes for the test's namespace.

    Ends all of them after the test, and searches their logs for bugs.
    """
    started: list[Operator] = []

    def start(*flags: str, **how: Any) -> Operator:
        operator = Operator(plane, namespace, tmp_path / f"operator-{len(started)}.log", flags, **how)
        started.append(operator)
        return operator

    yield start
    for operator in started:
        operator.kill()
    for operator in started:
        operator.check_log()


@pytest.fixture
def replica(plane: ControlPlane, namespace: str, start_operator: Callable[..., Operator]) -> Callable[..., Operator]:
    """Starts a replica of an installation, with an account of its own, so that the audit log distinguishes them."""

    granted = set()

    def start(account: str, installation: str = "dtj", *more: str, **how: Any) -> Operator:
        if account not in granted:
            grant(plane, namespace, account)
            own, claim = (namespace, account), claim_name(f"{namespace}/{installation}")
            bind(plane, namespace, f"{account}-election", rbac.rules(rbac.ELECTION_RULES), own)
            bind(plane, CLAIMS, f"{namespace}-{account}", rbac.claim_rules(claim), own)
            granted.add(account)
        flags = ("--leader-election", "true", "--lease-namespace", namespace, "--lease-name", installation)
        return start_operator(*flags, *more, account=account, **how)

    return start


@pytest.fixture
def kubelet(plane: ControlPlane, namespace: str) -> Iterator[Kubelet]:
    """Makes the namespace's pods run, as far as the API shows."""
    with Kubelet(plane, namespace) as kubelet:
        yield kubelet


@pytest.fixture
def agents() -> Iterator[Agents]:
    """Answers for the agents of the pods that the kubelet makes run."""
    with Agents() as agents:
        yield agents


@pytest.fixture
def submit(plane: ControlPlane, namespace: str) -> Callable[..., Any]:
    """Creates a job and returns it."""

    def create(name: str = "j", **spec: Any) -> Any:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": 2, "image": "trainer:test", "backend": "gloo", "entrypoint": {"module": "m"}} | spec,
        }
        return plane.request("POST", f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}", body)

    return create


@pytest.fixture
def run_job(submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents) -> Callable[..., Any]:
    """Creates a job, starts its pods, and returns the job once the operator reports that its group runs."""

    def create(name: str = "j", **spec: Any) -> Any:
        job = submit(name, **spec)
        agents.statuses[job["metadata"]["uid"]] = running()
        wait_until("the job runs", lambda: objects.condition(name, "Running"))
        return job

    return create
