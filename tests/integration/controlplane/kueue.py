"""The real queues and scheduler of Kueue as a process beside our operator, on the same API server."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dtj_operator import rbac
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane, free_ports
from hack.cluster.pki import Authority
from hack.cluster.versions import PARTNERS
from tests.integration.controlplane import crds
from tests.integration.controlplane.support import SERVICE_ACCOUNT, bind, wait_until

API = "/apis/kueue.x-k8s.io/v1beta2"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
Object = dict[str, Any]


def source() -> Path:
    """Returns the folder of Kueue's module."""
    return Path(gobuild.download(PARTNERS["kueue"])["Dir"])


def install_crds(plane: ControlPlane) -> None:
    """Installs Kueue's CRDs without the older version, which would need a conversion webhook."""
    for path in sorted((source() / "config/components/crd/bases").glob("*.yaml")):
        crd = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        crd["spec"]["versions"] = [each for each in crd["spec"]["versions"] if each["storage"]]
        crds.install(plane, crd)


@contextmanager
def running_manager(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs Kueue until the end of the block, with its webhooks for its own kinds."""
    program = gobuild.binary("kueue")
    install_crds(plane)
    health, webhook = free_ports(2)
    authority = Authority(folder / "pki")
    certificate, key = authority.serving("kueue", ["IP:127.0.0.1"])
    shutil.copy(certificate, authority.folder / "tls.crt")
    shutil.copy(key, authority.folder / "tls.key")
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(authority.folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        # The default names kinds of jobs whose integrations are not in this program.
        "integrations": {"frameworks": ["pod"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig)}
    with (folder / "kueue.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--config", str(folder / "config.yaml")], stdout=log, stderr=log, env=environment
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "kueue.log").read_text()[-4000:]
            command = ["curl", "--silent", "--fail", f"http://127.0.0.1:{health}/readyz"]
            return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0

        wait_until("Kueue is ready", ready, timeout=180)
        _install_webhooks(plane, webhook, authority.certificate)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _install_webhooks(plane: ControlPlane, port: int, authority: Path) -> None:
    """Registers the webhooks of Kueue's own kinds under an address instead of a Service."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    for body in yaml.safe_load_all((source() / "config/components/webhook/manifests.yaml").read_text()):
        hooks = [each for each in body["webhooks"] if "kueue-x-k8s-io" in each["clientConfig"]["service"]["path"]]
        for each in hooks:
            path = each["clientConfig"]["service"]["path"]
            each["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
        body |= {"webhooks": hooks, "metadata": {"name": f"kueue-{body['kind'].lower()}"}}
        plane.request("POST", f"{WEBHOOKS}/{body['kind'].lower()}s", body)


def grant(plane: ControlPlane, namespace: str, account: str = SERVICE_ACCOUNT) -> None:
    """Grants the rights that the chart adds with kueue.enabled."""
    bind(plane, namespace, f"{account}-kueue", rbac.rules(rbac.KUEUE_RULES), (namespace, account))
    base, name = "/apis/rbac.authorization.k8s.io/v1", f"{namespace}-{account}-flavors"
    rules = rbac.rules(rbac.KUEUE_CLUSTER_RULES)
    plane.request("POST", f"{base}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    plane.request("POST", f"{base}/clusterrolebindings", binding)


def create_queue(
    plane: ControlPlane, namespace: str, *, cpus: int, labels: dict[str, str] | None = None, topology: str | None = None
) -> None:
    """Creates a flavor, a ClusterQueue and a LocalQueue, all named after the namespace."""
    flavor: Object = {"nodeLabels": labels or {"pool": namespace}}
    if topology is not None:
        flavor["topologyName"] = topology
    else:
        flavor["tolerations"] = [{"key": "reserved", "operator": "Exists", "effect": "NoSchedule"}]
    quotas = [{"name": "cpu", "nominalQuota": str(cpus)}, {"name": "memory", "nominalQuota": "100Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": namespace, "resources": quotas}]}
    queue = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [group],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    for plural, kind, spec in (
        ("resourceflavors", "ResourceFlavor", flavor),
        ("clusterqueues", "ClusterQueue", queue),
        (f"namespaces/{namespace}/localqueues", "LocalQueue", {"clusterQueue": namespace}),
    ):
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": namespace}, "spec": spec}
        plane.request("POST", f"{API}/{plural}", body)


def workload(plane: ControlPlane, namespace: str, name: str) -> Object | None:
    """Returns the Workload of a job, or None."""
    found = plane.request("GET", f"{API}/namespaces/{namespace}/workloads")["items"]
    return next((each for each in found if each["metadata"]["name"] == name), None)


def is_true(found: Object | None, kind: str) -> bool:
    """Returns whether a Workload has this condition."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
