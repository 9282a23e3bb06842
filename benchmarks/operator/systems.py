"""The operators that are compared: how each is installed and started, its job, and the children that it creates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.operator.planes import NAMESPACE, cluster_account, install, send
from dtj_contract import names
from dtj_operator import rbac
from dtj_operator.leader.claims import claim_name
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane.support import CLAIMS, MASTER_KEY, bind, wait_until

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "system"
"""Namespace of the operators."""
ANY = 60.0
PODS = 2
SPEC = {"image": "trainer:test", "backend": "gloo", "entrypoint": {"module": "m"}}


class System(ABC):
    """An operator on one control plane."""

    account: str
    children: ClassVar[dict[str, int]]
    """Children of a job of two pods, by resource: how many the operator itself creates."""
    collection: str
    """Path of the jobs."""

    def __init__(self, plane: ControlPlane, *, tuned: bool) -> None:
        self.plane, self.tuned = plane, tuned
        self.process: subprocess.Popen[bytes] | None = None
        self.log = plane.data_dir / "operator.log"
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})

    @property
    def user(self) -> str:
        """The operator's name in the audit log."""
        return f"system:serviceaccount:{SYSTEM}:{self.account}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Returns what starts the operator."""

    @abstractmethod
    def job(self, name: str) -> Any:
        """Returns the job to create, of two pods."""

    @abstractmethod
    def is_running(self, job: Any) -> bool:
        """Returns whether the status of the job shows that its pods run."""

    def start(self) -> None:
        """Starts the operator, and returns at once."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.environment())

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def ready(self) -> None:
        """Returns once the operator has brought a first job, which stays, to its pods."""

        def created() -> bool:
            try:
                self.create("warm-up")
            except ProvisionError:  # a webhook does not answer yet
                return False
            return True

        wait_until("a job is accepted", created, detail=self.tail)
        wait_until("the first job has its pods", lambda: len(self.pods()) >= PODS, timeout=120, detail=self.tail)

    def pods(self) -> list[Any]:
        found: list[Any] = send(self.plane, "GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return found

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def create(self, name: str) -> Any:
        return send(self.plane, "POST", self.collection, self.job(name))

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends the operator by a signal, and waits for that."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(ANY)

    def restart(self) -> float:
        """Ends the operator and starts it a second later. Returns when it was started, in Unix time."""
        self.end()
        time.sleep(1.0)
        began = time.time()
        self.start()
        return began


PEERS = [{"podSelector": {}}]
"""The peers that may reach the agents of a job."""


class Ours(System):
    """This project's operator with the chart's defaults: all namespaces, leader election, NetworkPolicies."""

    account = "dtj-operator"
    children: ClassVar = {"services": 1, "secrets": 1, "statefulsets": 1}
    collection = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"

    def __init__(self, plane: ControlPlane, *, tuned: bool) -> None:
        super().__init__(plane, tuned=tuned)
        install(plane, sorted((ROOT / "crds").glob("*.yaml")))
        self.kubeconfig = cluster_account(plane, SYSTEM, self.account, rbac.rules(rbac.RULES | rbac.RUNTIME_RULES))
        own = (SYSTEM, self.account)
        bind(plane, SYSTEM, "election", rbac.rules(rbac.ELECTION_RULES), own)
        bind(plane, CLAIMS, "claims", rbac.claim_rules(claim_name(f"{SYSTEM}/dtj")), own)
        self.key = plane.data_dir / "master.key"
        self.key.write_bytes(MASTER_KEY)
        self.more: tuple[str, ...] = ("--job-network-policy-from", json.dumps(PEERS))
        self.interpreter: tuple[str, ...] = (sys.executable,)

    def command(self) -> Sequence[str]:
        flags = ["--agent-image", "dtj-operator:test", "--kubeconfig", str(self.kubeconfig)]
        flags += ["--master-key-file", str(self.key), "--metrics-port", "0", "--lease-namespace", SYSTEM]
        return [*self.interpreter, "-m", "dtj_operator.app", *flags, "--lease-name", "dtj", *self.more]

    def job(self, name: str, **spec: Any) -> Any:
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"replicas": PODS, "image": "trainer:test", "backend": "gloo", "entrypoint": {"module": "m"}}
            | spec,
        }

    def is_running(self, job: Any) -> bool:
        conditions = job.get("status", {}).get("conditions", [])
        return any((c["type"], c["status"]) == ("Running", "True") for c in conditions)

    def port(self) -> int:
        """Returns the port of /metrics, which the newest start has logged."""
        marker = "; port "

        def found() -> int:
            lines = [line for line in self.log.read_text().splitlines() if marker in line]
            return int(lines[-1].partition(marker)[2].partition('"')[0]) if lines else 0

        return wait_until("the operator logs its port", found, detail=self.tail)


class OursWithoutPolicy(Ours):
    """This project's operator with jobNetworkPolicy.enabled=false."""

    def __init__(self, plane: ControlPlane, *, tuned: bool) -> None:
        super().__init__(plane, tuned=tuned)
        self.more = ()
