"""Checks a pod's spec against OpenShift's security context constraint restricted-v2.

The namespace is one as OpenShift creates it.

https://docs.redhat.com/en/documentation/openshift_container_platform/latest/html/authentication_and_authorization/managing-pod-security-policies
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]
RANGE = range(1_000_650_000, 1_000_660_000)  # openshift.io/sa.scc.uid-range of the namespace
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(spec: Spec) -> list[str]:
    """Returns the violations that restricted-v2 would reject.

    Fields that restricted-v2 would fill in (user, fsGroup, SELinux) may be omitted.
    """
    return sorted(_violations(spec))


def _violations(spec: Spec) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes") or ():
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - VOLUMES)
    if pod.get("fsGroup", RANGE.start) not in RANGE:
        yield f"fsGroup {pod['fsGroup']}"
    yield from _identity("pod", pod)
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        own = container.get("securityContext") or {}
        name = f"container {container['name']}"
        yield from _identity(name, own)
        if own.get("privileged"):
            yield f"{name}: privileged"
        if own.get("allowPrivilegeEscalation"):
            yield f"{name}: allowPrivilegeEscalation"
        capabilities = own.get("capabilities") or {}
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"} or "ALL" not in capabilities.get("drop", ["ALL"]):
            yield f"{name}: capabilities"


def _identity(name: str, context: Spec) -> Iterator[str]:
    if context.get("runAsUser", RANGE.start) not in RANGE:
        yield f"{name}: runAsUser {context['runAsUser']}"
    if context.get("seccompProfile", {"type": "RuntimeDefault"})["type"] != "RuntimeDefault":
        yield f"{name}: seccompProfile"
