"""CRDs of other projects on the test's API server."""

from __future__ import annotations

from typing import Any

from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import wait_until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install(plane: ControlPlane, crd: Any) -> None:
    """Creates a CRD and waits until the API server serves it."""
    plane.request("POST", CRDS, crd, timeout=60)
    where = f"{CRDS}/{crd['metadata']['name']}"

    def established() -> bool:
        conditions = plane.request("GET", where)["status"].get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    wait_until(f"{where} is established", established)
