"""The pod network of a cluster without a network daemon: one bridge-less veth per pod, and a route to every other node.

Replaces the kindnet of plain kind. Runs once after creation, and again after a node container was stopped and started:
such a container has lost its routes and may have another address. policies.py enforces NetworkPolicies, on demand.
"""

from __future__ import annotations

import json

from hack.cluster import docker, kind
from hack.cluster.shell import ProvisionError

CONFLIST = "/etc/cni/net.d/10-dtj.conflist"


def conflist(pod_cidr: str) -> dict[str, object]:
    """Returns the CNI configuration of the node that owns this range of pod addresses."""
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": pod_cidr}]],
    }
    # No masquerading: pods reach nodes and each other under their own addresses, by the routes below.
    point_to_point = {"type": "ptp", "ipMasq": False, "ipam": ipam, "mtu": 1500}
    port_map = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.3.1", "name": "dtj", "plugins": [point_to_point, port_map]}


def ranges() -> dict[str, str]:
    """Returns the range of pod addresses that the controller manager assigned to each node."""
    listed = json.loads(kind.kubectl("get", "nodes", "-o", "json"))
    found = {node["metadata"]["name"]: node["spec"].get("podCIDR", "") for node in listed["items"]}
    unknown = [node for node in kind.nodes() if not found.get(node)]
    if unknown:
        raise ProvisionError(f"no pod address range yet for {', '.join(unknown)}")
    return {node: found[node] for node in kind.nodes()}


def apply() -> None:
    """Updates the CNI configuration and routes of every running node. Idempotent."""
    pods = ranges()
    running = [node for node in pods if docker.running(node)]
    # Ask the engine, because the API still has a node's old address for a while after a restart.
    template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    addresses = {node: docker.inspect(node, template) for node in running}
    for node in running:
        routes = [f"ip route replace {pods[other]} via {addresses[other]}" for other in running if other != node]
        # Rename the file into place, because containerd watches the folder and must not read half a file.
        write = f"mkdir -p /etc/cni/net.d && cat > {CONFLIST}.new && mv {CONFLIST}.new {CONFLIST}"
        docker.execute(
            node, ["sh", "-ec", "\n".join([write, *routes])], stdin=json.dumps(conflist(pods[node]), indent=1)
        )
