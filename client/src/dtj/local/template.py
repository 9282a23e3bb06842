"""Checks the types of the pod template's fields, and of their shorthands, that a local run reads. Pure.

On a cluster the API server checks the whole template when the operator applies it. Without this
check a number where a string belongs would surface deep in the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dtj.errors import InputError

Shape = Any
"""A type, `[shape]` for a list, `{"*": shape}` for a map, `{field: shape}` for an object.

null stands for an absent field.
"""

KINDS = {str: "a string", int: "a whole number", dict: "an object", list: "a list"}
_REFERENCE = {"name": str, "key": str}
_SOURCE = {
    "fieldRef": {"fieldPath": str},
    "secretKeyRef": _REFERENCE,
    "configMapKeyRef": _REFERENCE,
    "resourceFieldRef": {"resource": str},
}
_CONTAINER = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": _SOURCE}],
    "envFrom": [dict],
    "resources": {"requests": {"*": (str, int, float)}, "limits": {"*": (str, int, float)}},
    "securityContext": dict,
    "volumeMounts": [{"name": str, "mountPath": str, "subPath": str}],
    "ports": [dict],
}
_VOLUME = {
    "name": str,
    "persistentVolumeClaim": {"claimName": str},
    "hostPath": {"path": str},
    "emptyDir": dict,
    "ephemeral": dict,
    "configMap": dict,
    "secret": dict,
    "projected": dict,
    "downwardAPI": dict,
    "nfs": dict,
    "csi": dict,
}
_POD = {
    "containers": [_CONTAINER],
    "initContainers": [{"name": str}],
    "volumes": [_VOLUME],
    "securityContext": {"runAsUser": int, "runAsGroup": int, "fsGroup": int},
    "nodeSelector": {"*": str},
    "tolerations": [dict],
    "affinity": dict,
    "imagePullSecrets": [dict],
    "topologySpreadConstraints": [dict],
    "serviceAccountName": str,
    "terminationGracePeriodSeconds": int,
}
TEMPLATE = {"metadata": {"labels": {"*": str}, "annotations": {"*": str}}, "spec": _POD}


SPEC = {
    "template": TEMPLATE,
    **{name: _CONTAINER[name] for name in ("env", "envFrom", "resources")},
}


def check_spec(spec: Any, path: str) -> None:
    """Checks the template of a job's spec and its shorthands.

    Raises InputError with the path of every value of another type than Kubernetes accepts there.
    """
    wrong = [line for name, shape in SPEC.items() for line in _wrong(spec.get(name), shape, f"spec.{name}")]
    if wrong:
        raise InputError("\n".join(f"{path}: {line}" for line in wrong))


def check(template: Any, path: str) -> None:
    """Checks a template. Raises InputError as `check_spec` does."""
    check_spec({"template": template}, path)


def _wrong(value: Any, shape: Shape, at: str) -> Iterator[str]:
    if value is None:
        return
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{at}: must be a list, not {_shown(value)}"
            return
        for index, item in enumerate(value):
            if item is None:
                yield f"{at}[{index}]: must not be null"
            yield from _wrong(item, shape[0], f"{at}[{index}]")
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{at}: must be an object, not {_shown(value)}"
            return
        for field, item in value.items():
            yield from _wrong(item, shape.get("*", shape.get(field)), f"{at}.{field}")
    elif shape is not None and (not isinstance(value, shape) or isinstance(value, bool)):
        kind = KINDS[shape] if isinstance(shape, type) else "a quantity"
        yield f"{at}: must be {kind}, not {_shown(value)}{_remedy(value, shape)}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return (
        f"the string {value!r}"
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _remedy(value: Any, shape: Shape) -> str:
    if shape is str and isinstance(value, bool | int | float):
        return f'; quote it: "{_shown(value)}"'
    return "; write it without quotes" if shape is int and isinstance(value, str) and value.isdecimal() else ""
