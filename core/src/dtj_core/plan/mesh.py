"""Proxies of service meshes in the pods of a job: what to write where the group does not form.

A mesh puts its proxy into each pod and leads all connections through it. That may end a rendezvous: the proxy starts
after the ranks, demands TLS of the operator, or knows no pod that is not Ready. Training gains nothing from it.
docs/mesh.md has the details.
"""

from __future__ import annotations

from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

PROXIES = {
    "istio-proxy": 'the label sidecar.istio.io/inject: "false"',
    "linkerd-proxy": "the annotation linkerd.io/inject: disabled",
    "kuma-sidecar": "the label kuma.io/sidecar-injection: disabled",
    "consul-dataplane": 'the annotation consul.hashicorp.com/connect-inject: "false"',
}
"""By the name of the proxy's container: what keeps it out of a pod."""
FORMING_SECONDS = 30.0
"""A group whose pods run forms within a few seconds; a mesh is named after this time."""


def hint(pods: tuple[Object, ...], now: float) -> str:
    """Returns what to write about the mesh whose proxy is in pods that run and form no group; "" if there is none."""
    found = next((name for pod in pods for name in PROXIES if name in _containers(pod)), None)
    started = [time for pod in pods if (time := unix((pod.get("status") or {}).get("startTime"))) is not None]
    if found is None or now - max(started, default=now) < FORMING_SECONDS:
        return ""
    return (
        f"; the pods have {found} of a service mesh, which may stop connections of the agents: add {PROXIES[found]} to"
        " template.metadata of the job, suspend and resume it"
    )


def _containers(pod: Object) -> set[str]:
    """Returns the names of the pod's containers and init containers; a native sidecar is one of the latter."""
    status = pod.get("status") or {}
    statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return {str(each.get("name")) for each in statuses}
