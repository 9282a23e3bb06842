"""A Kubernetes API without nodes: etcd, kube-apiserver and kube-controller-manager as plain processes on loopback.

    with ControlPlane(bin_folder(CONTROL_PLANE), tmp_path) as plane:
        kubectl --kubeconfig {plane.kubeconfig} ...

RBAC, certificates, garbage collection, StatefulSets and namespaces are real. Without a kubelet, pods stay Pending
unless a test patches their status. Needs no root and no Docker. Ready in a few seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.cluster.pki import Authority, encoded, kubeconfig
from hack.cluster.shell import ProvisionError

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # One line per request, when it is answered, so that tests count a client's calls by counting lines.
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
STOP_TIMEOUT = 10


class ControlPlane:
    """Starts on entering and stops on leaving. The caller keeps or deletes the data directory."""

    def __init__(
        self,
        bin_dir: Path,
        data_dir: Path,
        *,
        audit_log: bool = True,
        controllers: str = "*",
        ready_timeout: float = 60,
        flags: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """`flags` are added to those of a process, by its name, and replace those of the same name."""
        self.bin_dir = Path(bin_dir)
        self.data_dir = Path(data_dir)
        self.audit_log = self.data_dir / "audit.log" if audit_log else None
        self.controllers = controllers
        self.ready_timeout = ready_timeout
        self.flags = flags or {}
        self.started_in = 0.0
        self.kubeconfig = self.data_dir / "admin.kubeconfig"
        self.url = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._minted = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts all processes and waits until the API answers and the controllers work."""
        began = time.monotonic()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._etcd_port, self._etcd_peer_port, self._api_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._api_port}"
        self._certificates()
        self._start_guard()
        self._start_etcd()
        self.start_apiserver()
        self._start_controller_manager()
        # A controller of the controller manager writes this object, so its informers are synced and it works.
        self._wait(
            "kube-controller-manager", lambda: self._exists("/api/v1/namespaces/default/serviceaccounts/default")
        )
        self.started_in = time.monotonic() - began

    def stop(self) -> None:
        """Kills every process. The data is thrown away, so there is nothing to flush."""
        guard = self._processes.get("guard")
        if guard is not None:
            try:
                os.killpg(guard.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + STOP_TIMEOUT
        for name, process in self._processes.items():
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise ProvisionError(f"{name} (process {process.pid}) did not exit on SIGKILL") from error
            if process.stdin is not None:
                process.stdin.close()
        self._processes.clear()

    def crash_apiserver(self) -> None:
        """Kills the API server as a power loss would; `start_apiserver` restarts it at the same address."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait(timeout=STOP_TIMEOUT)

    def start_apiserver(self) -> None:
        pki = self.data_dir / "pki"
        flags = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self._api_port,
            # The endpoints of `kubernetes` must not be loopback addresses, so the Service has none.
            "endpoint-reconciler-type": "none",
            "tls-cert-file": pki / "apiserver.crt",
            "tls-private-key-file": pki / "apiserver.key",
            "client-ca-file": pki / "ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki / "service-account.pub",
            "service-account-signing-key-file": pki / "service-account.key",
            "service-cluster-ip-range": "10.0.0.0/24",
            "authorization-mode": "RBAC",
            "allow-privileged": "true",
        }
        if self.audit_log is not None:
            policy = self.data_dir / "audit-policy.json"
            policy.write_text(json.dumps(AUDIT_POLICY))
            # Size 0 turns rotation off; by default the log rotates at 100 MB.
            flags |= {"audit-log-path": self.audit_log, "audit-policy-file": policy, "audit-log-maxsize": 0}
        self._spawn("kube-apiserver", flags)
        self._wait("kube-apiserver", lambda: self._status("/readyz") == 200)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Returns a kubeconfig with a client certificate for a user and groups; RBAC decides their permissions."""
        self._minted += 1
        name = f"client-{self._minted}"
        certificate, key = self._authority.client(name, user, groups)
        login = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
        return kubeconfig(self.data_dir / f"{name}.kubeconfig", self.url, self._authority.certificate, login)

    def kubeconfig_for_service_account(self, namespace: str, name: str, *, seconds: int = 3600) -> Path:
        """Returns a kubeconfig with a fresh token of this service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": seconds}})
        self._minted += 1
        target = self.data_dir / f"token-{self._minted}.kubeconfig"
        return kubeconfig(target, self.url, self._authority.certificate, {"token": answer["status"]["token"]})

    def request(self, method: str, path: str, body: object = None, *, timeout: float = 10) -> Any:
        """Sends a request as the administrator and returns the parsed response; meant for probes only."""
        status, text = self._call(method, path, body, timeout)
        if status >= 300:
            raise ProvisionError(f"{method} {path}: {status} {text[:500]}")
        return json.loads(text)

    def connection(self, timeout: float) -> http.client.HTTPSConnection:
        """Returns a connection of the administrator, for callers that send many requests on one."""
        return http.client.HTTPSConnection("127.0.0.1", self._api_port, context=self._tls, timeout=timeout)

    def audit_events(self) -> list[dict[str, Any]]:
        """Returns every answered request so far. The server writes the log before it sends the response."""
        if self.audit_log is None or not self.audit_log.exists():
            return []
        return [json.loads(line) for line in self.audit_log.read_text().splitlines() if line.endswith("}")]

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def _certificates(self) -> None:
        self._authority = Authority(self.data_dir / "pki")
        names = ["IP:127.0.0.1", "IP:10.0.0.1", "DNS:localhost", "DNS:kubernetes.default.svc"]
        self._authority.serving("apiserver", names)
        self._authority.key_pair("service-account")
        certificate, key = self._authority.client("admin", "admin", ["system:masters"])
        login = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
        kubeconfig(self.kubeconfig, self.url, self._authority.certificate, login)
        self._tls = ssl.create_default_context(cafile=str(self._authority.certificate))
        self._tls.load_cert_chain(certificate, key)

    def _start_guard(self) -> None:
        """Starts the leader of a process group that all others join. The leader kills the group when its pipe closes.

        No process is left behind, even if this one is killed and can't clean up.
        """
        script = "cat >/dev/null; kill -KILL 0"
        self._processes["guard"] = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, process_group=0)

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._etcd_peer_port}"
        flags = {
            "data-dir": self.data_dir / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            # A machine crash may lose writes. The data doesn't outlive a test, and the disk is the slowest part.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        # No wait is needed: the API server retries until etcd answers.
        self._spawn("etcd", flags)

    def _start_controller_manager(self) -> None:
        pki = self.data_dir / "pki"
        # Its own user name distinguishes its calls from others' in the audit log.
        login = self.kubeconfig_for("system:kube-controller-manager", ["system:masters"])
        flags = {
            "kubeconfig": login,
            "service-account-private-key-file": pki / "service-account.key",
            "root-ca-file": pki / "ca.crt",
            "controllers": self.controllers,
            "leader-elect": "false",
            "secure-port": 0,
            # The default of 20 requests a second would dominate what the tests measure.
            "kube-api-qps": 500,
            "kube-api-burst": 1000,
        }
        self._spawn("kube-controller-manager", flags)

    def _spawn(self, name: str, flags: dict[str, object]) -> None:
        flags = {**flags, **self.flags.get(name, {})}
        program = self.bin_dir / name
        if not program.exists():
            raise ProvisionError(f"no {program}; `python3 -m hack.cluster bin` builds it and prints the folder")
        with self._log(name).open("ab") as stream:
            self._processes[name] = subprocess.Popen(
                [str(program), *(f"--{flag}={value}" for flag, value in flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=self.data_dir,
                process_group=self._processes["guard"].pid,
            )

    def _log(self, name: str) -> Path:
        return self.data_dir / f"{name}.log"

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.ready_timeout
        while not ready():
            for other, process in self._processes.items():
                if process.poll() is not None:
                    raise ProvisionError(f"{other} exited with {process.returncode}:\n{_tail(self._log(other))}")
            if time.monotonic() > deadline:
                raise ProvisionError(f"{name} not ready after {self.ready_timeout:g} s:\n{_tail(self._log(name))}")
            time.sleep(0.05)

    def _exists(self, path: str) -> bool:
        return self._status(path) == 200

    def _status(self, path: str) -> int:
        try:
            return self._call("GET", path, None, 5)[0]
        except (OSError, http.client.HTTPException):
            return 0

    def _call(self, method: str, path: str, body: object, timeout: float) -> tuple[int, str]:
        connection = self.connection(timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def free_ports(count: int) -> list[int]:
    """Returns ports without a listener, from below the range that the kernel uses for outgoing connections."""
    found: list[int] = []
    for _ in range(1000):
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
        if len(found) == count:
            return found
    raise ProvisionError("no free loopback ports")


def _tail(path: Path) -> str:
    """Returns the last lines of a log, without informational ones."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join([line for line in lines if not re.match(r"I\d{4} ", line)][-15:])
