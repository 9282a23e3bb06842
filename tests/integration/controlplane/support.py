"""Shared by the tests on a real API server: the operator as a process, a simulated kubelet, and waiting."""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dtj_contract import names
from dtj_contract.operator_message import HEADER, OperatorMessage, decode
from dtj_contract.status_token import CLOCK_HEADER, bearer_is_valid, lasting_token
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.model import Settings
from dtj_operator import rbac
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.lib import waiting

MASTER_KEY = b"0123456789abcdef0123456789abcdef"
SERVICE_ACCOUNT = "dtj-operator"
CLAIMS = "kube-system"
"""Where installations keep their claims."""

# A server that fails or does not answer counts as a condition that is not met yet.
UNANSWERED = (ProvisionError, OSError, http.client.HTTPException)
wait_until = functools.partial(waiting.wait_until, every=0.05, retry=UNANSWERED)


def change(plane: ControlPlane, path: str, make: Callable[[Any], None], subresource: str = "") -> None:
    """Reads an object, changes it with `make` and writes it.

    Tries again if somebody else wrote the object meanwhile: the operator and the controllers write at any time.
    """

    def changed() -> bool:
        whole = plane.request("GET", path)
        make(whole)
        plane.request("PUT", path + subresource, whole)
        return True

    wait_until(f"{path} is changed", changed)


def agent_address() -> str:
    """Returns an address of this machine for the pods.

    Each test process that runs at the same time has another address.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return f"127.0.{int(worker.removeprefix('gw')) + 1}.1"


def grant(plane: ControlPlane, namespace: str, account: str = SERVICE_ACCOUNT) -> None:
    """Creates a service account with exactly the operator's rules, in this namespace only."""
    plane.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
    bind(plane, namespace, account, rbac.rules(), (namespace, account))
    bind(plane, None, f"{namespace}-{account}", rbac.rules(rbac.RUNTIME_RULES), (namespace, account))


def bind(plane: ControlPlane, namespace: str | None, name: str, rules: Sequence[Any], account: tuple[str, str]) -> None:
    """Grants rules in `namespace`, or in the cluster, to a service account, given as its namespace and name."""
    base = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{namespace}" if namespace else "")
    kind = "Role" if namespace else "ClusterRole"
    plane.request("POST", f"{base}/{kind.lower()}s", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account[1], "namespace": account[0]}],
    }
    plane.request("POST", f"{base}/{kind.lower()}bindings", binding)


def running(step: int = 0, **more: Any) -> Any:
    """Returns the `/status` of an agent whose group runs."""
    return {
        "phase": "Running",
        "attempt": 1,
        "restarts": {"inPlace": 0, "pod": 0, "counted": 0},
        "startTime": 1790000000.0,
        "progress": {"step": step, "totalSteps": 900, "time": 1790000003.0},
    } | more


def outcome(job: Any, result: str, reason: str) -> Any:
    """Returns container states of a pod whose agent ended with this outcome and was restarted."""
    report = {
        "version": 1,
        "uid": job["metadata"]["uid"],
        "result": result,
        "reason": reason,
        "message": "said so",
        "attempt": 1,
    }
    terminated = {"exitCode": 0 if result == "Succeeded" else 1, "message": json.dumps(report)}
    return {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {"terminated": terminated}}


class Objects:
    """Reads one namespace as the administrator."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def path(self, plural: str, name: str = "") -> str:
        api = {
            "distributedtrainingjobs": "apis/training.dtj.dev/v1alpha1",
            "statefulsets": "apis/apps/v1",
            "events": "apis/events.k8s.io/v1",
            "networkpolicies": "apis/networking.k8s.io/v1",
        }.get(plural, "api/v1")
        return f"/{api}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def get(self, plural: str, name: str) -> Any:
        """Returns the object, or None."""
        try:
            return self.plane.request("GET", self.path(plural, name))
        except ProvisionError as error:
            if ": 404 " in str(error):
                return None
            raise

    def change(self, plural: str, name: str, make: Callable[[Any], None]) -> None:
        change(self.plane, self.path(plural, name), make)

    def list(self, plural: str) -> list[Any]:
        items: list[Any] = self.plane.request("GET", self.path(plural))["items"]
        return items

    def dump(self) -> str:
        """Returns all objects, for the report of a failed test."""
        lines = []
        for plural in ("distributedtrainingjobs", "statefulsets", "pods"):
            try:
                lines += [f"{plural} {o['metadata']['name']}: {json.dumps(o.get('status'))}" for o in self.list(plural)]
            except UNANSWERED as error:
                lines.append(f"{plural}: {error}")
        return "\n".join(lines)

    def condition(self, name: str, kind: str) -> Any:
        """Returns the condition if it is True."""
        job = self.get("distributedtrainingjobs", name) or {}
        for condition in job.get("status", {}).get("conditions", []):
            if condition["type"] == kind and condition["status"] == "True":
                return condition
        return None

    def reason(self, name: str) -> Any:
        """Returns the reason in the job's status; None before its first status write."""
        job = self.get("distributedtrainingjobs", name) or {}
        return job.get("status", {}).get("reason")


class Operator:
    """`dtj-operator` as a process, logged in as its service account."""

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        log: Path,
        flags: Sequence[str] = (),
        *,
        served: str | None = None,
        account: str = SERVICE_ACCOUNT,
        program: Sequence[str] = ("-m", "dtj_operator.app"),
    ) -> None:
        """`served` is the value of --namespace, or "" for the whole cluster.

        `account` is a service account of `namespace`, and `program` is what python runs.
        """
        self.plane = plane
        self.namespace = namespace
        self.log = log
        key = log.with_suffix(".key")
        key.write_bytes(MASTER_KEY)
        self.account = account
        self.kubeconfig = plane.kubeconfig_for_service_account(namespace, account)
        command = [sys.executable, *program, "--agent-image", "dtj-operator:test"]
        for each in (namespace if served is None else served).split():
            command += ["--namespace", each]
        command += ["--kubeconfig", str(self.kubeconfig), "--master-key-file", str(key), "--metrics-port", "0"]
        # Without an election, an operator that replaces a killed one acts at once. The last of two flags holds.
        command += ["--leader-election", "false", *flags]
        self.started = time.monotonic()
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr)

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    def lines(self) -> list[dict[str, Any]]:
        """Returns the parsed log: every whole line must be JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def ready(self) -> Operator:
        wait_until("the operator is ready", lambda: self.get("/readyz")[0] == 200)
        return self

    def port(self) -> int:
        def port() -> int:
            found = re.search(r"; port (\d+)", self.log.read_text())
            if found is None and self.process.poll() is not None:
                raise AssertionError(f"the operator ended with {self.process.returncode}: {self.log.read_text()}")
            return int(found[1]) if found else 0

        return wait_until("the operator logs its port", port)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """Returns the user and system time since the start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def calls(self) -> list[dict[str, Any]]:
        """Returns the operator's requests, without discovery, from the API server's audit log."""
        return [
            event
            for event in self.plane.audit_events()
            if event["user"].get("username") == self.user and event.get("objectRef")
        ]

    def writes(self) -> list[dict[str, Any]]:
        """Returns the requests that wrote: no reads and no dry runs."""
        reading = ("get", "list", "watch")
        return [e for e in self.calls() if e["verb"] not in reading and "dryRun=All" not in e["requestURI"]]

    def terminate(self, seconds: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def check_log(self) -> None:
        """Checks that every line is JSON, and that there is no traceback."""
        traced = [line for line in self.lines() if "traceback" in line or "Traceback" in line["message"]]
        assert not traced, traced


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores that the operator has ended a connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Agents:
    """The agents of all pods 0.

    These agents answer GET /status for each job in `statuses` to a request with the job's key: at once, or when the
    status has changed if the request waits for that.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, Any] = {}
        """By job uid."""
        self.patience = 1.0
        """Longest wait for a change, so that a test may wait for several answers. Real agents wait longer."""
        self.speak = threading.Event()
        """Cleared while the agents take requests and answer none."""
        self.speak.set()
        self.are_older = False
        """Whether the agents take the token that does not expire, and show no clock."""
        self.asked = 0
        self.refused = 0
        self.handed_over = OperatorMessage()
        """By the last request with the key."""
        settings = Settings(agent_image="", master_key=MASTER_KEY)
        agents = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                agents.asked += 1
                shown, message = self.headers.get("Authorization", ""), self.headers.get(HEADER, "")
                for uid in list(agents.statuses):
                    key = agent_key(uid, settings).encode()
                    if agents._takes(key, shown, message):
                        agents.handed_over = decode(message)
                        body = agents._page(uid, self.path)
                        agents.speak.wait(120)
                        if body is None:
                            break
                        self.send_response(200)
                        self.send_header("Content-Length", str(len(body)))
                        self.end_headers()
                        self.wfile.write(body)
                        return
                agents.refused += 1
                self.send_response(401)
                if not agents.are_older:
                    self.send_header(CLOCK_HEADER, f"{time.time():.0f}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        self._is_closed = threading.Event()
        self._server = _Server((agent_address(), names.AGENT_PORT), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="agents")

    def _takes(self, key: bytes, shown: str, message: str) -> bool:
        if self.are_older:
            return shown == f"Bearer {lasting_token(key)}"
        return bearer_is_valid(key, shown, time.time(), message)

    def _page(self, uid: str, path: str) -> bytes | None:
        """Returns the page once its version is not the one in `path`, at the latest after the wait in `path`."""
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(path).query))
        ends = time.monotonic() + min(float(query.get("wait", "0")), self.patience)
        while (status := self.statuses.get(uid)) is not None:
            page = json.dumps(status | {"version": 1, "uid": uid})
            version = f"{zlib.crc32(page.encode()):08x}"
            if version != query.get("after") or time.monotonic() >= ends or self._is_closed.wait(0.05):
                return json.dumps(json.loads(page) | {"statusVersion": version}).encode()
        return None

    def __enter__(self) -> Agents:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed.set()
        self.speak.set()
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()
