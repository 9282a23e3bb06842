"""A fresh control plane for each trial: what its processes use, and what its clients have requested."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from hack.cluster.versions import CONTROL_PLANE
from tests.integration.controlplane.support import wait_until

NAMESPACE = "work"
"""Of all jobs."""
KCM = {
    "shipped": {"kube-api-qps": 20, "kube-api-burst": 30},
    "tuned": {"kube-api-qps": 1000, "kube-api-burst": 2000, "concurrent-job-syncs": 20},
}
SCRATCH = "/var/tmp"
"""The Training Operator hides /tmp from itself."""
READING = ("get", "list", "watch")
_local = threading.local()


@contextlib.contextmanager
def fresh(limits: str) -> Iterator[ControlPlane]:
    """Returns a control plane with an empty namespace for jobs. `limits`: a key of KCM."""
    flags = {"kube-controller-manager": KCM[limits]}
    with (
        tempfile.TemporaryDirectory(prefix="dtj-operator-", dir=SCRATCH) as folder,
        ControlPlane(gobuild.bin_folder(CONTROL_PLANE), Path(folder), flags=flags) as plane,
    ):
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield plane


def send(plane: ControlPlane, method: str, path: str, body: object = None, content: str = "application/json") -> Any:
    """Sends a request of the administrator on a connection that this thread keeps. Raises ProvisionError."""
    connections: dict[str, http.client.HTTPSConnection] = _local.__dict__.setdefault("connections", {})
    text = None if body is None else json.dumps(body)
    while True:
        known = connections.get(plane.url)
        connection = connections[plane.url] = known or plane.connection(60)
        try:
            connection.request(method, path, text, {"Content-Type": content})
            answer = connection.getresponse()
            found = answer.read()
            break
        except (OSError, http.client.HTTPException) as error:
            connections.pop(plane.url).close()
            # The server has closed a connection that was idle, before it saw the request.
            if known is None or not isinstance(
                error, http.client.RemoteDisconnected | ConnectionError | ssl.SSLEOFError
            ):
                raise
    if answer.status >= 300:
        raise ProvisionError(f"{method} {path}: {answer.status} {found[:500]!r}")
    return json.loads(found)


def watch(plane: ControlPlane, path: str, stop: threading.Event) -> Iterator[Any]:
    """Yields the events of a watch until `stop` is set. A watch that the server ends is continued."""
    version = ""
    while not stop.is_set():
        for event in _watch_once(plane, path, stop, version):
            if event["type"] == "ERROR":  # the version is too old: everything is shown again
                version = ""
                break
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                yield event


def _watch_once(plane: ControlPlane, path: str, stop: threading.Event, version: str) -> Iterator[Any]:
    connection, ended = plane.connection(5), threading.Event()
    with contextlib.closing(connection):
        query = f"?watch=true&timeoutSeconds=3600&resourceVersion={version}&allowWatchBookmarks=true"
        connection.request("GET", path + query)
        assert connection.sock is not None
        socket = connection.sock
        answer = connection.getresponse()
        socket.settimeout(3600)

        def close() -> None:
            while not (stop.wait(0.2) or ended.is_set()):
                pass
            _shut(socket)

        threading.Thread(target=close, daemon=True).start()
        try:
            while not stop.is_set():
                try:
                    line = answer.readline()
                except (OSError, ValueError, http.client.HTTPException):
                    return
                if not line:
                    return
                if stop.is_set():
                    return  # it may be cut off
                yield json.loads(line)
        finally:
            ended.set()


def _shut(socket: Any) -> None:
    with contextlib.suppress(OSError):
        socket.shutdown(2)


def install(plane: ControlPlane, paths: Sequence[Path]) -> None:
    """Creates the CRDs of these files, and waits until they are served."""
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for path in paths:
        crd = yaml.safe_load(path.read_text())
        plane.request("POST", base, crd)

        def established(name: str = crd["metadata"]["name"]) -> bool:
            conditions = plane.request("GET", f"{base}/{name}")["status"].get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        wait_until("the CRD is established", established)


def cluster_account(plane: ControlPlane, namespace: str, name: str, rules: Sequence[Any] | None) -> Path:
    """Creates a service account with these rules in the cluster, or cluster-admin. Returns its kubeconfig."""
    plane.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    rbac, role = "/apis/rbac.authorization.k8s.io/v1", "cluster-admin" if rules is None else name
    if rules is not None:
        plane.request("POST", f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": list(rules)})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    plane.request("POST", f"{rbac}/clusterrolebindings", binding)
    return plane.kubeconfig_for_service_account(namespace, name, seconds=7200)


@dataclass
class Audit:
    """The requests of one user, read from the audit log as it grows. Leases are left out."""

    plane: ControlPlane
    user: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    _position: int = 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the requests that were answered since the last call."""
        assert self.plane.audit_log is not None
        with self.plane.audit_log.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        marker = f'"username":"{self.user}"'.encode()
        events = [json.loads(line) for line in text.splitlines() if marker in line]
        new = [e for e in events if e.get("objectRef") and e["objectRef"]["resource"] != "leases"]
        self.calls += new
        return new

    def writes(self, since: float = 0.0, until: float = float("inf")) -> list[dict[str, Any]]:
        """Returns the requests that wrote, answered between two Unix times: no reads and no dry runs."""
        self.read()
        return [e for e in self.calls if is_write(e) and since <= answered(e) < until]

    def reads(self, since: float = 0.0, until: float = float("inf")) -> list[dict[str, Any]]:
        """Returns the reads but watches, which end when they are renewed, and the dry runs."""
        self.read()
        return [e for e in self.calls if not is_write(e) and e["verb"] != "watch" and since <= answered(e) < until]


def is_write(event: dict[str, Any]) -> bool:
    return (
        event["verb"] not in READING
        and "dryRun=All" not in event["requestURI"]
        and event["responseStatus"].get("code", 0) < 300
    )


def answered(event: dict[str, Any]) -> float:
    """Returns the Unix time at which the API server had answered."""
    return datetime.fromisoformat(event["stageTimestamp"].replace("Z", "+00:00")).timestamp()


def resources(events: Sequence[dict[str, Any]]) -> Counter[str]:
    """Returns the number of requests by verb and resource."""
    refs = [(event["verb"], event["objectRef"]) for event in events]
    return Counter(
        f"{verb} {ref['resource']}" + (f"/{ref['subresource']}" if "subresource" in ref else "") for verb, ref in refs
    )


def cpu_seconds(pid: int) -> float:
    """Returns the user and system time of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """Returns the resident memory, or with VmHWM its peak."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
