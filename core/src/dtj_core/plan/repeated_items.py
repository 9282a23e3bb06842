"""Drops what a pod template lists twice, because a server-side apply rejects it.

Kubernetes takes such a pod with a warning: of two variables of one name the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from dtj_core.plan.model import Object


def drop_repeated(pod: Object) -> None:
    """Drops the earlier ones of two variables, ports or pull secrets that Kubernetes takes for one."""
    for container in (*pod["containers"], *(pod.get("initContainers") or ())):
        if container.get("env"):
            container["env"] = _visible(container["env"])
        if container.get("ports"):
            container["ports"] = _last(container["ports"], _port)
    if pod.get("imagePullSecrets"):
        pod["imagePullSecrets"] = _last(pod["imagePullSecrets"], _name)


def _visible(env: list[Object]) -> list[Object]:
    """Returns the variables that no later one of their name hides.

    One that a variable refers to before it is hidden stays: without it, the other would have another value. The API
    server then rejects the pair.
    """
    last = {_name(entry): index for index, entry in enumerate(env)}

    def is_used(index: int) -> bool:
        reference, until = f"$({_name(env[index])})", last[_name(env[index])]
        return any(reference in str(entry.get("value") or "") for entry in env[index + 1 : until + 1])

    return [entry for index, entry in enumerate(env) if last[_name(entry)] == index or is_used(index)]


def _last(items: list[Object], key: Callable[[Object], Hashable]) -> list[Object]:
    return list({key(item): item for item in items}.values())


def _name(item: Object) -> Any:
    return item.get("name")


def _port(port: Object) -> tuple[Any, Any]:
    return port.get("containerPort"), port.get("protocol") or "TCP"
