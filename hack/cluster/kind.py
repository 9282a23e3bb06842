"""The kind cluster: configuration, creation and deletion."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from functools import cache as memoize
from pathlib import Path
from typing import Any

from hack.cluster import cache, docker, gobuild, nodeimage
from hack.cluster.shell import log, run, succeeds, wait_for
from hack.cluster.versions import KIND, KUBERNETES

WORKERS = 2
SHARED = "/var/lib/dtj-shared"
AUDIT = "/var/log/kubernetes"


def name() -> str:
    return os.environ.get("DTJ_CLUSTER") or "dtj"


def nodes() -> list[str]:
    """Returns kind's names of the node containers."""
    workers = [f"{name()}-worker{number if number > 1 else ''}" for number in range(1, WORKERS + 1)]
    return [f"{name()}-control-plane", *workers]


def state() -> Path:
    """Returns the cluster's folder on this machine: kubeconfig, audit log, shared directory."""
    return cache.root() / "cluster" / name()


def kubeconfig() -> Path:
    return state() / "kubeconfig"


@memoize
def program(tool: str) -> Path:
    """Returns a program's path.

    kubectl and helm may be the machine's own. kind is always the pinned one, because the configuration fits it.
    """
    found = shutil.which(tool) if tool != "kind" and docker.public_images() else None
    return Path(found) if found else gobuild.binary(tool)


def kubectl(*arguments: str, timeout: float = 30, stdin: str | None = None) -> str:
    options = ["--kubeconfig", str(kubeconfig()), f"--request-timeout={timeout:g}s"]
    return run([program("kubectl"), *options, *arguments], timeout=timeout + 5, stdin=stdin).stdout


def configuration(*, from_source: bool) -> dict[str, Any]:
    """Returns kind's configuration, to be written as JSON, which is YAML."""
    here = state()
    api_server = {
        "kind": "ClusterConfiguration",
        "apiServer": {
            "extraArgs": [
                {"name": "audit-policy-file", "value": f"{AUDIT}/policy.json"},
                {"name": "audit-log-path", "value": f"{AUDIT}/audit.log"},
                {"name": "audit-log-maxsize", "value": "0"},
            ],
            "extraVolumes": [{"name": "audit", "hostPath": AUDIT, "mountPath": AUDIT, "pathType": "DirectoryOrCreate"}],
        },
    }
    patches = [json.dumps(api_server)]
    if from_source and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        # Kubernetes no longer accepts cgroup v1 by default, but this setting allows it.
        patches.append(json.dumps({"kind": "KubeletConfiguration", "failCgroupV1": False}))
    shared = [{"hostPath": str(here / "shared"), "containerPath": SHARED}]
    document: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": name(),
        "kubeadmConfigPatches": patches,
        # registry.py writes the address of the local registry into this folder.
        "containerdConfigPatches": [
            '[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
        ],
        "nodes": [
            {"role": "control-plane", "extraMounts": [{"hostPath": str(here / "audit"), "containerPath": AUDIT}]},
            *[{"role": "worker", "extraMounts": shared} for _ in range(WORKERS)],
        ],
    }
    if from_source:
        # kindnetd can't be built as a Go module, so network.py replaces it.
        document["networking"] = {"disableDefaultCNI": True}
    return document


def audit_policy() -> dict[str, Any]:
    """Returns a policy that logs each call once, when it is answered.

    The calls of Kubernetes' own components are left out, because they would be a gigabyte a day.
    """
    own = ["system:nodes", "system:serviceaccounts:kube-system"]
    users = ["system:apiserver", "system:kube-scheduler", "system:kube-controller-manager", "system:kube-proxy"]
    rules = [
        {"level": "None", "userGroups": own},
        {"level": "None", "users": users},
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
        {"level": "Metadata"},
    ]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}


def recipe() -> str:
    """Returns a key that changes when the cluster must be recreated to match this tree."""
    source = not docker.public_images()
    image = nodeimage.node_image() if source else f"kind {KIND}"
    return cache.key(image, KUBERNETES, configuration(from_source=source), audit_policy())


def is_current() -> bool:
    recorded = state() / "recipe"
    return recorded.exists() and recorded.read_text() == recipe()


def exists() -> bool:
    return any(docker.exists(node) for node in nodes())


def create() -> None:
    here = state()
    for folder in ("audit", "shared"):
        (here / folder).mkdir(parents=True, exist_ok=True)
    # Like /tmp: any user of any pod writes there, and deletes only its own files.
    (here / "shared").chmod(0o1777)
    (here / "audit/audit.log").unlink(missing_ok=True)
    (here / "audit/policy.json").write_text(json.dumps(audit_policy()))
    source = not docker.public_images()
    config = here / "kind.json"
    config.write_text(json.dumps(configuration(from_source=source), indent=1))
    command = ["create", "cluster", "--config", str(config), "--kubeconfig", str(kubeconfig())]
    if source:
        command += ["--image", nodeimage.node_image()]
    log(f"kind create cluster {name()}")
    (here / "recipe").unlink(missing_ok=True)
    run([program("kind"), *command], timeout=600)
    (here / "recipe").write_text(recipe())


def _thaw() -> None:
    """Thaws frozen containers (cgroup v1).

    runc freezes a container during setup. If runc is killed meanwhile, SIGKILL can't end the frozen processes.
    """
    for path in Path("/sys/fs/cgroup/freezer").glob("docker/**/freezer.state"):
        # A file that is gone or not writable shows up as a failed removal.
        with contextlib.suppress(OSError):
            if path.read_text().strip() != "THAWED":
                path.write_text("THAWED")


def delete() -> None:
    if not exists():
        return
    log(f"kind delete cluster {name()}")
    (state() / "recipe").unlink(missing_ok=True)
    kubeconfig().unlink(missing_ok=True)
    command = ["delete", "cluster", "--name", name(), "--kubeconfig", str(kubeconfig())]
    if succeeds([program("kind"), *command], timeout=120) and not exists():
        return

    # kind gives up on containers in an unknown state; the engine does not.
    def gone() -> bool:
        _thaw()
        return succeeds(["docker", "rm", "--force", "--volumes", *nodes()], timeout=120) or not exists()

    wait_for(f"the end of the containers of cluster {name()}", gone, timeout=180)
