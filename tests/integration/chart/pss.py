"""Checks a pod's spec against the Pod Security Standards, level restricted.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(spec: Spec) -> list[str]:
    """Returns the violations that a namespace with `enforce: restricted` would reject."""
    return sorted(_violations(spec))


def _violations(spec: Spec) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        for kind in volume.keys() - {"name"} - VOLUMES:
            yield f"volume {volume['name']}: {kind}"
    if pod.get("sysctls"):
        yield "sysctls"
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for problem in _of_container(container, pod):
            yield f"container {container['name']}: {problem}"


def _of_container(container: Spec, pod: Spec) -> Iterator[str]:
    own = container.get("securityContext", {})
    effective = pod | own
    if not effective.get("runAsNonRoot"):
        yield "runAsNonRoot"
    if effective.get("runAsUser") == 0:
        yield "runAsUser 0"
    if effective.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if own.get("privileged"):
        yield "privileged"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities not dropped"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities added"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "hostPort"
    # Required by this project, not by the standard.
    if own.get("readOnlyRootFilesystem") is not True:
        yield "readOnlyRootFilesystem"
