"""The kind cluster offers DNS names, a network across nodes, a shared directory and the registry's images."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from hack.cluster import baseimage, cluster, kind, registry
from tests.lib.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    cluster.up()
    name = f"cluster-test-{uuid.uuid4().hex[:6]}"
    kind.kubectl("create", "namespace", name)
    yield name
    kind.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def image() -> str:
    """An image that is pushed under a unique name, so that a node can have it from nowhere else."""
    pushed = f"{registry.address()}/cluster-test:{uuid.uuid4().hex[:6]}"
    subprocess.run(["docker", "tag", baseimage.python_image(), pushed], check=True, timeout=60)
    subprocess.run(["docker", "push", "-q", pushed], check=True, timeout=300)
    subprocess.run(["docker", "rmi", pushed], check=True, timeout=60)
    return pushed


@pytest.fixture(scope="module")
def pair(namespace: str, image: str) -> list[str]:
    """Two pods, one on each worker, behind a headless service."""
    labels = {"app": "pair"}
    spread = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    container = {
        "name": "c",
        "image": image,
        "command": ["python3", "-m", "http.server", "8000"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    pod = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}},
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "runAsNonRoot": True},
        "containers": [container],
        "volumes": [{"name": "shared", "hostPath": {"path": kind.SHARED, "type": "Directory"}}],
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "pair"},
        "spec": {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True},
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "pair"},
        "spec": {
            "serviceName": "pair",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    for document in (service, stateful_set):
        kind.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(document))
    kind.kubectl("-n", namespace, "rollout", "status", "statefulset/pair", "--timeout=120s", timeout=120)
    return ["pair-0", "pair-1"]


def inside(namespace: str, pod: str, code: str) -> str:
    return kind.kubectl("-n", namespace, "exec", pod, "--", "python3", "-c", code).strip()


def test_pods_run_on_different_nodes(namespace: str, pair: list[str]) -> None:
    nodes = kind.kubectl("-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}").split()
    assert sorted(nodes) == kind.nodes()[1:]


@pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])
def test_pod_reaches_a_pod_on_the_other_node_by_name(namespace: str, pair: list[str], here: int, there: int) -> None:
    url = f"http://{pair[there]}.pair:8000/etc/hostname"
    code = f"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())"
    wait_until("the name", lambda: inside_or_nothing(namespace, pair[here], code) == pair[there], every=0.2)


def inside_or_nothing(namespace: str, pod: str, code: str) -> str:
    command = [str(kind.program("kubectl")), "--kubeconfig", str(kind.kubeconfig()), "-n", namespace, "exec", pod]
    done = subprocess.run(
        [*command, "--", "python3", "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout.strip()


def test_pods_reach_the_api_server_by_name(namespace: str, pair: list[str]) -> None:
    code = "import socket; socket.create_connection(('kubernetes.default.svc', 443), 5); print('ok')"
    assert inside(namespace, pair[0], code) == "ok"


def test_shared_directory_is_the_same_on_both_nodes_and_this_machine(namespace: str, pair: list[str]) -> None:
    name = uuid.uuid4().hex
    inside(namespace, pair[0], f"open('/shared/{name}', 'w').write('from pair-0')")
    try:
        assert inside(namespace, pair[1], f"print(open('/shared/{name}').read())") == "from pair-0"
        assert (kind.state() / "shared" / name).read_text() == "from pair-0"
    finally:
        inside(namespace, pair[0], f"import os; os.remove('/shared/{name}')")


def test_audit_log_has_our_calls(namespace: str) -> None:
    name = f"audited-{uuid.uuid4().hex[:6]}"
    kind.kubectl("-n", namespace, "create", "configmap", name)
    text = (kind.state() / "audit/audit.log").read_text()
    calls = [json.loads(line) for line in text.splitlines() if name in line or f"{namespace}/configmaps" in line]
    assert any(call["verb"] == "create" and call["user"]["username"] == "kubernetes-admin" for call in calls)


def test_up_leaves_a_healthy_cluster_alone(namespace: str) -> None:
    command = ["docker", "container", "inspect", "-f", "{{.Id}} {{.State.StartedAt}}", *kind.nodes()]
    before = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    cluster.up()
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout == before
