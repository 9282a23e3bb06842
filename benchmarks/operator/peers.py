"""JobSet and the Kubeflow Training Operator, as their projects ship them or with higher limits."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from benchmarks.operator.peer_programs import JOBSET, TRAINING_OPERATOR, source
from benchmarks.operator.planes import NAMESPACE, cluster_account, install
from benchmarks.operator.systems import PODS, SYSTEM, System
from hack.cluster import gobuild
from hack.cluster.controlplane import ControlPlane, free_ports
from hack.cluster.pki import encoded
from hack.cluster.shell import run

POD = {"containers": [{"name": "pytorch", "image": "trainer:test", "command": ["python", "-m", "m"]}]}
SERVING = "/tmp/k8s-webhook-server/serving-certs"


class Peer(System):
    """An operator written in Go, with its webhooks at an address of this machine."""

    address = "127.0.0.1"
    """Where the API server reaches this machine."""

    def __init__(self, plane: ControlPlane, *, tuned: bool) -> None:
        super().__init__(plane, tuned=tuned)
        self.webhook_port, self.health_port = free_ports(2)
        self.kubeconfig = cluster_account(plane, SYSTEM, self.account, None)
        self.certificates = plane.data_dir / "serving-certs"
        self.certificates.mkdir()

    def serve(self, authority: str, service: str) -> dict[str, Path]:
        """Creates the certificates of the webhook server. Keys in PKCS1, which the cert rotators read."""
        folder = self.certificates
        paths = {name: folder / name for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
        names = f"subjectAltName=DNS:{service}.{SYSTEM}.svc,IP:{self.address}"
        for key in ("ca.key", "tls.key"):
            run(["openssl", "genrsa", "-traditional", "-out", paths[key], "2048"], timeout=60)
        subject = ["-subj", f"/O={authority}/CN={authority}", "-addext", f"subjectAltName=DNS:{authority}"]
        usage = ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
        request = ["openssl", "req", "-x509", "-sha256", "-days", "3650"]
        run([*request, "-key", paths["ca.key"], "-out", paths["ca.crt"], *subject, *usage], timeout=60)
        signed = ["-CA", paths["ca.crt"], "-CAkey", paths["ca.key"], "-addext", names]
        leaf = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth"]
        subject = ["-subj", f"/CN={service}.{SYSTEM}.svc"]
        run([*request, "-key", paths["tls.key"], "-out", paths["tls.crt"], *signed, *subject, *leaf], timeout=60)
        return paths

    def register(self, configuration: Any, authority: Path) -> None:
        """Creates a webhook configuration that calls this machine."""
        kind = configuration["kind"]
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://{self.address}:{self.webhook_port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": encoded(authority)}
        plural = kind.lower() + "s"
        self.plane.request("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", configuration)


class JobSet(Peer):
    """JobSet with leader election. Its certificates come from files, as with cert-manager."""

    account = "jobset-controller-manager"
    children: ClassVar = {"jobs": 1, "services": 1}
    collection = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"

    def __init__(self, plane: ControlPlane, *, tuned: bool) -> None:
        super().__init__(plane, tuned=tuned)
        self.program = gobuild.program(JOBSET)
        components = source(JOBSET) / "config/components"
        install(plane, sorted((components / "crd/bases").glob("*.yaml")))
        paths = self.serve("jobset-ca", "jobset-webhook-service")
        for each in yaml.safe_load_all((components / "webhook/manifests.yaml").read_text()):
            each["metadata"]["name"] = "jobset-" + each["metadata"]["name"]
            for webhook in each["webhooks"]:
                if "pod" in webhook["name"]:  # as the kustomization's patches do
                    selector = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
                    webhook["objectSelector"] = {"matchExpressions": [selector]}
            self.register(each, paths["ca.crt"])
        self.config = plane.data_dir / "jobset.json"
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": True, "resourceNamespace": SYSTEM},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": self.webhook_port, "certDir": str(self.certificates)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health_port}"},
        }
        self.config.write_text(yaml.safe_dump(configuration))

    def command(self) -> Sequence[str]:
        flags = ["--zap-log-level=2", f"--config={self.config}", f"--kubeconfig={self.kubeconfig}"]
        return [str(self.program), *flags, *(["--kube-api-qps=5000", "--kube-api-burst=5000"] if self.tuned else [])]

    def job(self, name: str) -> Any:
        template = {"spec": POD | {"restartPolicy": "Never"}}
        job = {"parallelism": PODS, "completions": PODS, "backoffLimit": 0, "template": template}
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"replicatedJobs": [{"name": "r", "replicas": 1, "template": {"spec": job}}]},
        }

    def is_running(self, job: Any) -> bool:
        # JobSet has no condition for it.
        return any(each.get("ready") for each in job.get("status", {}).get("replicatedJobsStatus", []))


class TrainingOperator(Peer):
    """The Training Operator with PyTorchJobs only."""

    account = "training-operator"
    children: ClassVar = {"pods": PODS, "services": PODS}
    collection = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"

    def __init__(self, plane: ControlPlane, *, tuned: bool) -> None:
        super().__init__(plane, tuned=tuned)
        self.program = gobuild.program(TRAINING_OPERATOR)
        manifests = source(TRAINING_OPERATOR) / "manifests/base"
        install(plane, [manifests / "crds/kubeflow.org_pytorchjobs.yaml"])
        paths = self.serve("training-operator-ca", "training-operator")
        data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in paths.items()}
        secret = {"metadata": {"name": "training-operator-webhook-cert"}, "data": data}
        plane.request("POST", f"/api/v1/namespaces/{SYSTEM}/secrets", secret)
        (configuration,) = yaml.safe_load_all((manifests / "webhook/manifests.yaml").read_text())
        configuration["metadata"]["name"] = "validator.training-operator.kubeflow.org"
        webhooks = configuration["webhooks"]
        configuration["webhooks"] = [each for each in webhooks if "pytorchjob" in each["name"]]
        self.register(configuration, paths["ca.crt"])

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MY_POD_NAMESPACE": SYSTEM}

    def command(self) -> Sequence[str]:
        flags = ["--enable-scheme=pytorchjob", f"--webhook-server-port={self.webhook_port}"]
        flags += ["--metrics-bind-address=0", f"--health-probe-bind-address=127.0.0.1:{self.health_port}"]
        flags.append(f"--kubeconfig={self.kubeconfig}")
        if self.tuned:
            flags += ["--kube-api-qps=500", "--kube-api-burst=500", "--controller-threads=8"]
        # The folder of the certificates is fixed, so the operator gets a /tmp of its own. unshare and sh exec, so the
        # process keeps its id.
        script = (
            f'mount -t tmpfs none /tmp && mkdir -p {SERVING} && cp {self.certificates}/* {SERVING} && exec "$0" "$@"'
        )
        return ["unshare", "-m", "sh", "-c", script, str(self.program), *flags]

    def job(self, name: str) -> Any:
        replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": POD}}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
        }

    def is_running(self, job: Any) -> bool:
        conditions = job.get("status", {}).get("conditions", [])
        return any((c["type"], c["status"]) == ("Running", "True") for c in conditions)
