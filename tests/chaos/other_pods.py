"""Pods that a node of kind has besides those of the job: their loss would be another fault."""

from __future__ import annotations

from tests.e2e.kit import OPERATOR_NAMESPACE, Kubectl

DEPLOYMENTS = ((OPERATOR_NAMESPACE, "app.kubernetes.io/name=dtj-operator"), ("kube-system", "k8s-app=kube-dns"))
"""Namespaces and labels of deployments and of their pods: the operator and the cluster's DNS."""


def nodes() -> set[str]:
    """Returns the nodes that have any of them."""
    return {pod["spec"].get("nodeName") for space, label in DEPLOYMENTS for pod in Kubectl(space).list("pods", label)}


def move(node: str) -> None:
    """Recreates them all on other nodes."""
    Kubectl()("cordon", node)
    try:
        for space, label in DEPLOYMENTS:
            Kubectl(space)("delete", "pod", "-l", label, timeout=120)
            Kubectl(space)("rollout", "status", "deployment", "-l", label, "--timeout=120s", timeout=150)
    finally:
        Kubectl()("uncordon", node)
