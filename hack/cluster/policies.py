"""Enforces NetworkPolicies on demand, by kube-router's firewall on every node of a cluster whose network is ours.

The network of network.py enforces none, and most tests need none. kind's own network, where public images can be
pulled, enforces them always.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hack.cluster import baseimage, cache, docker, gobuild, kind, registry
from hack.cluster.shell import ProvisionError, log, run, wait_for
from hack.cluster.versions import PARTNERS

NAME = "dtj-policies"
NAMESPACE = "kube-system"
_DOCKERFILE = """FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends iptables ipset && rm -rf /var/lib/apt/lists/*
COPY kube-router /usr/local/bin/kube-router
ENTRYPOINT ["kube-router"]
"""
# The last rule of a complete sync: what passed all policies is accepted by its mark.
_SYNCED = "iptables -S KUBE-ROUTER-FORWARD | grep -q 0x20000"
_CHAINS = "KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-"
_SETS = "^(KUBE-(SRC|DST)-|TMP-)"
# Prints what is left. Deletes single rules, because kube-proxy may change the table between a save and a restore of
# all of it.
_CLEAN = f"""
rules=$(iptables-save -t filter)
{{
  echo '*filter'
  echo "$rules" | sed -nE 's/^-A (INPUT|FORWARD|OUTPUT) (.*-j ({_CHAINS}).*)/-D \\1 \\2/p'
  echo "$rules" | sed -nE 's/^:(({_CHAINS})[^ ]*) .*/-F \\1/p'
  echo "$rules" | sed -nE 's/^:(({_CHAINS})[^ ]*) .*/-X \\1/p'
  echo COMMIT
}} | iptables-restore --noflush
for set in $(ipset list -n | grep -E '{_SETS}'); do ipset destroy "$set"; done
iptables-save | grep -E '{_CHAINS}' || true
ipset list -n | grep -E '{_SETS}' || true
"""


def on() -> None:
    """Starts the firewall on every node, and waits until the policies that exist are enforced."""
    _require_cluster()
    if docker.public_images():
        log("kind's own network enforces NetworkPolicies")
        return
    image = _image()
    run(["docker", "push", "--quiet", image], timeout=300)
    kind.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(image)}))
    kind.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{NAME}", "--timeout=180s", timeout=180)
    for node in kind.nodes():
        wait_for(f"the first rules on {node}", lambda node=node: _has_synced(node), timeout=60)  # type: ignore[misc]
    log("NetworkPolicies are enforced")


def off() -> None:
    """Stops the firewall and removes its rules and sets of addresses. Raises ProvisionError if any is left."""
    _require_cluster()
    if docker.public_images():
        return
    kinds = "daemonset,serviceaccount,clusterrole,clusterrolebinding"
    # In the foreground, because a pod that still ends could write its rules again.
    deleting = ["delete", kinds, "-l", f"app={NAME}", "--cascade=foreground", "--timeout=120s"]
    kind.kubectl("-n", NAMESPACE, *deleting, timeout=120)
    image = _image()
    for node in filter(docker.running, kind.nodes()):
        # The nodes have no `ipset`. A container of the engine in the node's network has, and needs no kubelet.
        place = ["--network", f"container:{node}", "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW"]
        left = run(["docker", "run", "--rm", *place, "--entrypoint", "sh", image, "-ec", _CLEAN], timeout=60).stdout
        if left.strip():
            raise ProvisionError(f"{node} keeps rules or sets:\n{left}")
    log("NetworkPolicies are no longer enforced")


def objects(image: str) -> list[dict[str, Any]]:
    """Returns the DaemonSet of this image with its account, which only reads."""
    labels = {"app": NAME}
    local = {"name": NAME, "namespace": NAMESPACE, "labels": labels}
    rules = [
        {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    container = {
        "name": "kube-router",
        "image": image,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
    }
    pod = {
        "hostNetwork": True,
        "serviceAccountName": NAME,
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": local},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME, "labels": labels},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME, "labels": labels},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": local,
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        },
    ]


def _require_cluster() -> None:
    if not docker.running(*kind.nodes()):
        raise ProvisionError(f"not all nodes of cluster {kind.name()} run; `make cluster-up` starts them")


def _has_synced(node: str) -> bool:
    done = run(["docker", "exec", node, "sh", "-c", _SYNCED], timeout=30, check=False)
    return done.returncode == 0


def _image() -> str:
    tool = PARTNERS["kube-router"]
    key = cache.key(tool.version, tool.main, _DOCKERFILE, baseimage.build_base_key())
    image = f"{registry.address()}/dtj-kube-router:v{tool.version.removeprefix('v')}-{key}"
    if not docker.image_exists(image):
        with tempfile.TemporaryDirectory() as place:
            context = Path(place)
            docker.copy_program(gobuild.binary("kube-router"), context)
            docker.build(image, context, _DOCKERFILE.format(base=baseimage.build_base()))
    return image
