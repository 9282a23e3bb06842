"""Webhooks that add containers to every pod, as service meshes and secret stores do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from hack.cluster.pki import Authority, encoded
from tests.e2e.kit import Job, Kubectl, wait_until
from tests.e2e.test_recovery import KILL_WORKER

# Answers AdmissionReviews with a patch: a proxy first in the list, an init container before ours, a native sidecar.
WEBHOOK = """
import base64, http.server, json, ssl
added = json.load(open("/config/added.json"))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        init = review["request"]["object"]["spec"].get("initContainers")
        patch = [{"op": "add", "path": "/spec/containers/0", "value": added["proxy"]}]
        if init is None:
            patch.append({"op": "add", "path": "/spec/initContainers", "value": []})
        patch += [{"op": "add", "path": "/spec/initContainers/0", "value": each} for each in added["init"]]
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch",
                  "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/config/tls.crt", "/config/tls.key")
server = http.server.ThreadingHTTPServer(("", 8443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
# As a proxy does: it ends when it gets SIGTERM.
FOREVER = ["python3", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]
RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
PROXY, INIT, SIDECAR = "istio-proxy", "vault-agent-init", "log-shipper"


def container(name: str, image: str, command: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "command": command, "securityContext": RESTRICTED, **more}


@pytest.fixture
def injector(kubectl: Kubectl, images: dict[str, str], tmp_path: Path) -> Iterator[None]:
    """Runs a webhook that mutates the pods of jobs in this namespace."""
    image, host = images["trainer"], f"injector.{kubectl.namespace}.svc"
    authority = Authority(tmp_path / "pki")
    certificate, key = authority.serving("injector", [f"DNS:{host}"])
    added = {
        "proxy": container(PROXY, image, FOREVER),
        "init": [
            container(SIDECAR, image, FOREVER, restartPolicy="Always"),
            container(INIT, image, ["python3", "-c", "print(1)"]),
        ],
    }
    files = {
        "added.json": json.dumps(added),
        "tls.crt": certificate.read_text(),
        "tls.key": key.read_text(),
        "webhook.py": WEBHOOK,
    }
    serve = container("c", image, ["python3", "/config/webhook.py"], ports=[{"containerPort": 8443}])
    serve["volumeMounts"] = [{"name": "config", "mountPath": "/config"}]
    serve["readinessProbe"] = {"tcpSocket": {"port": 8443}, "periodSeconds": 1}
    labels = {"app": "injector"}
    pod = {"containers": [serve], "volumes": [{"name": "config", "secret": {"secretName": "injector"}}]}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "injector"}, "stringData": files},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "injector"},
            "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "injector", "labels": labels}, "spec": pod},
    )
    kubectl("wait", "--for=condition=Ready", "pod/injector", "--timeout=120s", timeout=130)
    client = {"service": {"name": "injector", "namespace": kubectl.namespace, "path": "/"}}
    webhook = {
        "name": "injector.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "failurePolicy": "Fail",
        "clientConfig": client | {"caBundle": encoded(authority.certificate)},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kubectl.namespace}},
        "objectSelector": {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    name = kubectl.namespace
    kubectl.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
    )
    yield
    kubectl("delete", "mutatingwebhookconfiguration", name, "--ignore-not-found")


def test_job_with_injected_containers_starts_recovers_and_completes(
    injector: None, make_job: Callable[..., Job], undisturbed: Job
) -> None:
    job = make_job("meshed").create()
    # The API server's cache of webhooks may be late; a pod of the job without the proxy would prove nothing.
    pods = wait_until("the pods are there", lambda: job.pods() if len(job.pods()) == 3 else None, timeout=60)
    for pod in pods.values():
        assert pod["spec"]["containers"][0]["name"] == PROXY
        assert {INIT, SIDECAR} <= {each["name"] for each in pod["spec"]["initContainers"]}
    job.until_step(45)
    job.kubectl("exec", "meshed-1", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    done = job.wait("Complete", 240)
    assert done["status"]["restarts"]["counted"] == 1
    assert job.losses() == undisturbed.losses()
    wait_until("the pods are gone", lambda: not job.pods(), timeout=90)
