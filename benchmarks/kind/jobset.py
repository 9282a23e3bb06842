"""JobSet's controller on the kind cluster, as a process of this machine, and the JobSets of the ladder."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from benchmarks.kind.group import CONFINED, MOUNT, SECURITY, VOLUME, environ, use_cluster
from benchmarks.operator.peer_programs import JOBSET, JOBSET_AGENT, source
from benchmarks.operator.peers import JobSet
from benchmarks.operator.systems import SYSTEM
from hack.cluster import gobuild, kind
from hack.cluster.pki import kubeconfig
from hack.cluster.shell import ProvisionError
from tests.e2e.kit import Kubectl, Object, docker, wait_until

NAME, PORT, EXIT_CODE = "peer", 29500, 88
AGENT = "in-place-restart-agent"
RECREATE, IN_PLACE = "Recreate", "InPlaceRestart"


class Kind:
    """The API server of the kind cluster, as benchmarks.operator uses its own control planes."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder
        login = yaml.safe_load(kind.kubeconfig().read_text())
        cluster, user = login["clusters"][0]["cluster"], login["users"][0]["user"]
        self.url = cluster["server"]
        self._authority = folder / "authority.crt"
        files = {
            self._authority: cluster["certificate-authority-data"],
            folder / "admin.crt": user["client-certificate-data"],
            folder / "admin.key": user["client-key-data"],
        }
        for path, text in files.items():
            path.touch(mode=0o600)
            path.write_bytes(base64.b64decode(text))
        self._tls = ssl.create_default_context(cafile=str(self._authority))
        self._tls.load_cert_chain(folder / "admin.crt", folder / "admin.key")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request as the administrator and returns the parsed response. Raises ProvisionError."""
        place = urlsplit(self.url).netloc
        connection = http.client.HTTPSConnection(place, context=self._tls, timeout=30)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            answer = connection.getresponse()
            found = answer.read()
        if answer.status >= 300:
            raise ProvisionError(f"{method} {path}: {answer.status} {found[:500]!r}")
        return json.loads(found)

    def kubeconfig_for_service_account(self, namespace: str, name: str, *, seconds: int = 3600) -> Path:
        """Returns a kubeconfig with a fresh token of this service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": seconds}})
        token = {"token": answer["status"]["token"]}
        return kubeconfig(self.data_dir / f"{name}.kubeconfig", self.url, self._authority, token)


class KindJobSet(JobSet):
    """JobSet with its alpha feature of restarts in place; the nodes reach its webhooks at the gateway of kind."""

    def __init__(self, plane: Kind) -> None:
        gateway = docker("inspect", "-f", "{{.NetworkSettings.Networks.kind.Gateway}}", kind.nodes()[0])
        self.address = gateway.strip()
        super().__init__(plane, tuned=True)  # type: ignore[arg-type]
        configuration = yaml.safe_load(self.config.read_text())
        self.config.write_text(yaml.safe_dump(configuration | {"featureGates": {IN_PLACE: True}}))


@contextlib.contextmanager
def controller() -> Iterator[None]:
    """Runs JobSet's controller, and removes what it needs in the cluster afterwards."""
    use_cluster()
    with tempfile.TemporaryDirectory(prefix="dtj-jobset-") as folder:
        _remove()
        system = None
        try:
            system = KindJobSet(Kind(Path(folder)))
            system.start()
            wait_until("JobSet answers", lambda: "Starting workers" in system.tail(), timeout=90, detail=system.tail)
            yield
        except BaseException:
            if system is not None:
                print(system.tail(), flush=True)
            raise
        finally:
            if system is not None:
                system.end()
            _remove()


def _remove() -> None:
    components = source(JOBSET) / "config/components"
    kubectl = Kubectl()
    gone = ("--ignore-not-found", "--timeout=60s")
    for each in yaml.safe_load_all((components / "webhook/manifests.yaml").read_text()):
        kubectl("delete", each["kind"].lower(), f"jobset-{each['metadata']['name']}", *gone, timeout=90)
    for path in sorted((components / "crd/bases").glob("*.yaml")):
        kubectl("delete", "crd", yaml.safe_load(path.read_text())["metadata"]["name"], *gone, timeout=90)
    kubectl("delete", "clusterrolebinding", JobSet.account, *gone, timeout=90)
    kubectl("delete", "namespace", SYSTEM, *gone, timeout=90)


def objects(
    namespace: str, strategy: str, ranks: int, script: str, image: str, resources: Object, **variables: object
) -> list[Object]:
    """Returns a JobSet that trains with one plain rank in each pod, and what its pods need."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    variables |= {
        "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "MASTER_ADDR": f"{NAME}-r-0-0.{NAME}", "MASTER_PORT": PORT,
        "LADDER_FOLDER": f"{VOLUME}/{NAME}", "HOME": "/tmp", "USER": "trainer",
    }  # fmt: skip
    env = [*environ(**variables), {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}}]
    container: Object = {
        "name": "trainer", "image": image, "command": ["python3", "-u", script], "env": env, "resources": resources,
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "script", "mountPath": MOUNT, "readOnly": True},
            {"name": "checkpoint", "mountPath": VOLUME},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }  # fmt: skip
    # A second is what the other arms give a pod that is deleted, and no rank here needs more.
    pod: Object = {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "securityContext": SECURITY,
        "enableServiceLinks": False, "automountServiceAccountToken": False, "containers": [container],
        "volumes": [
            {"name": "script", "configMap": {"name": "bench"}},
            {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "shared"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }  # fmt: skip
    job: Object = {"parallelism": ranks, "completions": ranks, "backoffLimit": 0, "template": {"spec": pod}}
    more: list[Object] = []
    if strategy == IN_PLACE:
        container["command"] = [f"{VOLUME}/{AGENT}"]
        container["env"] += environ(
            JOBSET_NAME=NAME, IN_PLACE_RESTART_EXIT_CODE=EXIT_CODE, WORKER_COMMAND=f"exec python3 -u {script}"
        )
        container["env"].append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
        pod |= {"restartPolicy": "OnFailure", "automountServiceAccountToken": True}
        job |= {"backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}
        more = _rights(namespace)
    template: Object = {"metadata": {}, "spec": job}
    jobset: Object = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": {"maxRestarts": 100, "restartStrategy": strategy},
            "replicatedJobs": [{"name": "r", "replicas": 1, "template": template}],
        },
    }  # fmt: skip
    return [*more, jobset]


def put_agent(folder: Path) -> None:
    """Copies JobSet's agent for restarts in place to the shared volume, from which its pods run it."""
    path = folder / AGENT
    path.write_bytes(gobuild.program(JOBSET_AGENT).read_bytes())
    path.chmod(0o755)


def _rights(namespace: str) -> list[Object]:
    """Returns what lets the pods' agents read their JobSet and annotate their pod."""
    rules = [
        {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
    ]
    api = "rbac.authorization.k8s.io"
    role: Object = {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": AGENT}, "rules": rules}
    binding: Object = {
        "apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": AGENT},
        "roleRef": {"apiGroup": api, "kind": "Role", "name": AGENT},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }  # fmt: skip
    return [role, binding]
