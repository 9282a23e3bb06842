"""The kind cluster itself: its configuration, its creation and its removal."""

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
    """The node containers, as kind calls them."""
    workers = [f"{name()}-worker{number if number > 1 else ''}" for number in range(1, WORKERS + 1)]
    return [f"{name()}-control-plane", *workers]


def state() -> Path:
    """What belongs to the cluster on this side: kubeconfig, audit log, the shared directory."""
    return cache.root() / "cluster" / name()


def kubeconfig() -> Path:
    return state() / "kubeconfig"


@memoize
def program(tool: str) -> Path:
    """kubectl and helm may be the machine's own; kind is always ours, since the configuration is written for it."""
    found = shutil.which(tool) if tool != "kind" and docker.public_images() else None
    return Path(found) if found else gobuild.binary(tool)


def kubectl(*arguments: str, timeout: float = 30, stdin: str | None = None) -> str:
    options = ["--kubeconfig", str(kubeconfig()), f"--request-timeout={timeout:g}s"]
    return run([program("kubectl"), *options, *arguments], timeout=timeout + 5, stdin=stdin).stdout


def configuration(*, from_source: bool) -> dict[str, Any]:
    """kind's configuration; JSON is YAML."""
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
        # Kubernetes has retired cgroup v1 as a default, and still runs on it when told to.
        patches.append(json.dumps({"kind": "KubeletConfiguration", "failCgroupV1": False}))
    shared = [{"hostPath": str(here / "shared"), "containerPath": SHARED}]
    document: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": name(),
        "kubeadmConfigPatches": patches,
        # Where registry.py puts the address of the local registry.
        "containerdConfigPatches": [
            '[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
        ],
        "nodes": [
            {"role": "control-plane", "extraMounts": [{"hostPath": str(here / "audit"), "containerPath": AUDIT}]},
            *[{"role": "worker", "extraMounts": shared} for _ in range(WORKERS)],
        ],
    }
    if from_source:
        # kindnetd is not to be had from source: network.py does its part.
        document["networking"] = {"disableDefaultCNI": True}
    return document


def audit_policy() -> dict[str, Any]:
    """Every call once, when it is answered, but those of Kubernetes' own parts: they would be a gigabyte a day."""
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
    """Changes when the cluster has to be made anew to be what this tree describes."""
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
    # Any user of any pod writes there, and deletes only what is its own: as /tmp.
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
    """cgroup v1: runc freezes a container while it sets it up. Killed meanwhile, it leaves processes that SIGKILL can't end."""
    for path in Path("/sys/fs/cgroup/freezer").glob("docker/**/freezer.state"):
        with contextlib.suppress(OSError):  # gone, or not ours to write: then the removal says so
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

    # kind gives up on containers in a state that it doesn't know; the engine does not.
    def gone() -> bool:
        _thaw()
        return succeeds(["docker", "rm", "--force", "--volumes", *nodes()], timeout=120) or not exists()

    wait_for(f"the end of the containers of cluster {name()}", gone, timeout=180)
