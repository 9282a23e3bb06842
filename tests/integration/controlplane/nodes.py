"""Node objects without machines: what a scheduler decides by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import Objects, change, wait_until

NODES = "/api/v1/nodes"
READY = {"type": "Ready", "status": "True", "reason": "Test", "message": "as the test wants"}


def create_node(plane: ControlPlane, name: str, *, cpus: int, labels: Mapping[str, str] | None = None) -> None:
    """Creates a node that is ready, and waits until nothing keeps pods away from it."""
    room = {"cpu": str(cpus), "memory": "64Gi", "pods": "20"}
    named = {"kubernetes.io/hostname": name, **(labels or {})}
    plane.request("POST", NODES, {"metadata": {"name": name, "labels": named}})

    def report(node: Any) -> None:
        node["status"] = {"capacity": room, "allocatable": room, "conditions": [READY]}

    change(plane, f"{NODES}/{name}", report, "/status")
    # The API server taints each new node, and the controller manager takes the taint off a ready one.
    wait_until(f"{name} takes pods", lambda: not plane.request("GET", f"{NODES}/{name}")["spec"].get("taints"))


def place(objects: Objects, pod: str, node: str) -> str:
    """Places a pod on a node as the scheduler would, and returns its uid. The node need not exist.

    A pod without a node does not terminate: the API server removes it at once.
    """
    binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    objects.plane.request("POST", objects.path("pods", pod) + "/binding", binding)
    return str(objects.get("pods", pod)["metadata"]["uid"])
