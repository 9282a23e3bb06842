"""A job under its NetworkPolicy: it completes, and a stranger reaches none of its ports.

A CNI that enforces no policies can't show that, so a control comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from tests.e2e.conftest import drop_namespace, make_namespace
from tests.e2e.kit import Job, Kubectl, wait_until

PORT = 8000
# Prints whether a TCP connection is answered: a policy drops the packets, and a closed port answers at once.
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("open")
except ConnectionRefusedError:
    print("closed")
except OSError:
    print("silent")
"""


def plain_pod(name: str, image: str, labels: dict[str, str], *command: str) -> Any:
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "c", "image": image, "command": list(command), "securityContext": restricted}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def address(kubectl: Kubectl, pod: str) -> str:
    def running() -> str:
        status = (kubectl.get("pod", pod) or {}).get("status", {})
        return status.get("podIP", "") if status.get("phase") == "Running" else ""

    return wait_until(f"pod {pod} runs", running, timeout=120)


def reach(stranger: Kubectl, host: str, port: int) -> str:
    return stranger("exec", "stranger", "--", "python3", "-c", TRY, host, str(port)).strip()


@pytest.fixture
def stranger(kubectl: Kubectl, shared_root: Path, images: dict[str, str]) -> Iterator[Kubectl]:
    """Returns another namespace, with a pod that may try to connect."""
    other = make_namespace(f"{kubectl.namespace}-x"[:63], shared_root)
    other.apply(plain_pod("stranger", images["trainer"], {}, "python3", "-c", "import signal; signal.pause()"))
    address(other, "stranger")
    yield other
    drop_namespace(other, shared_root)


def require_enforcement(kubectl: Kubectl, stranger: Kubectl, image: str) -> None:
    """Skips the test where the CNI lets a stranger pass a policy that admits nobody."""
    labels = {"dtj-e2e": "closed"}
    kubectl.apply(plain_pod("closed", image, labels, "python3", "-m", "http.server", str(PORT)))
    host = address(kubectl, "closed")
    wait_until("the control's port is open", lambda: reach(stranger, host, PORT) == "open", timeout=60)
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"]}
    kubectl.apply(
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": spec}
    )
    try:
        wait_until("the control's port is closed", lambda: reach(stranger, host, PORT) == "silent", timeout=30)
    except AssertionError:
        pytest.skip("the CNI of this cluster enforces no NetworkPolicy (hack/cluster/network.py)")


def test_stranger_reaches_no_port_of_a_job_that_completes(
    make_job: Callable[..., Job], kubectl: Kubectl, stranger: Kubectl, images: dict[str, str]
) -> None:
    require_enforcement(kubectl, stranger, images["trainer"])
    job = make_job("walled").create()
    job.until_step(1)
    pods = job.pods()
    hosts = [pod["status"]["podIP"] for pod in pods.values()]
    listening = job.kubectl("exec", "walled-0", "-c", "trainer", "--", "cat", "/proc/net/tcp")
    # Column 1 is the local address in hex; state 0A is LISTEN.
    rows = [line.split() for line in listening.splitlines()[1:]]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"} | {names.AGENT_PORT}
    assert len(ports) >= 2, "the rendezvous listens, too"
    tried = {(host, port): reach(stranger, host, port) for host in hosts for port in sorted(ports)}
    assert set(tried.values()) == {"silent"}, tried
    job.wait("Complete", 240)
