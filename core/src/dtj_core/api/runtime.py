"""DistributedTrainingRuntime: which fields it may give, and how they are merged with those of a job. Pure.

The merge, which docs/runtimes.md states for users:

- A field of the job wins. Maps are merged by key, at any depth.
- Lists are replaced, with these exceptions: `env`, `volumes` and `volumeMounts` are merged by name (or mountPath)
  with whole items, in the place of the runtime's; containers and init containers are merged by name, field by
  field. The trainer container of the runtime is that of the job, whatever their names.
- `checkpoint.volume` and `restart.avoidNodes` are replaced as a whole.
- A shorthand and the field of the template that it stands for are one field, whoever writes which.
- `entrypoint` replaces command and args of the runtime's container. processesPerPod and processesFrom replace each
  other.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from dtj_contract import names
from dtj_core.api import shorthands
from dtj_core.api.errors import InvalidRuntime, Violation
from dtj_core.api.read import violations
from dtj_core.api.template import find_trainer_container

Object = dict[str, Any]

REF = "runtimeRef"
FIELDS = (
    "image", *shorthands.FIELDS, "template", "processesPerPod", "processesFrom", "backend", "engine", "checkpoint",
    "restart", "progressDeadlineSeconds", "queueName", "ttlSecondsAfterFinished", "activeDeadlineSeconds",
    "startupDeadlineSeconds",
)  # fmt: skip
"""The fields of a job's spec that a runtime may give."""
DEFAULTED = (
    "backend", "engine", "restart", "restart.maxRestarts", "restart.windowSeconds",
    "restart.maxRestartsWithoutProgress", "restart.avoidNodes", "restart.rules", "checkpoint.mountPath",
    "checkpoint.everySteps", "checkpoint.keep",
)  # fmt: skip
"""Those with a default, which the API server does not write into a job: it would hide the runtime's value."""

_WHOLE = {("checkpoint", "volume"), ("restart", "avoidNodes")}
_ITEMS = {"env": "name", "volumes": "name", "volumeMounts": "mountPath"}
_CONTAINERS = ("containers", "initContainers")
_IN_CONTAINER = ("image", *shorthands.CONTAINER)
_EITHER = ("processesPerPod", "processesFrom")


def merge(runtime: Object, spec: Object) -> Object:
    """Returns the spec of a job, with what the spec of its runtime gives beside it, and without `runtimeRef`."""
    base = deepcopy({name: runtime[name] for name in FIELDS if name in runtime})
    own = deepcopy({name: value for name, value in spec.items() if name != REF})
    _align(base, own)
    _align(own, base)
    container = find_trainer_container(base.get("template") or {})
    if own.get("entrypoint"):
        for name in ("command", "args"):
            container.pop(name, None)
    mine = find_trainer_container(own.get("template") or {})
    if container and mine:
        container["name"] = mine.setdefault("name", names.CONTAINER)
    if any(name in own for name in _EITHER):
        base = {name: value for name, value in base.items() if name not in _EITHER}
    merged: Object = _merged(base, own, ())
    return merged


def validate(obj: Object) -> None:
    """Raises InvalidRuntime if `kubectl apply` would reject the runtime."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        raise InvalidRuntime((Violation("spec", "required, but missing"),))
    unknown = tuple(Violation(f"spec.{name}", "no field of a runtime") for name in spec if name not in FIELDS)
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "job"}}
    broken = violations(job | {"spec": {**{k: spec[k] for k in FIELDS if k in spec}, REF: {"name": "runtime"}}})
    if unknown or broken:
        raise InvalidRuntime((*unknown, *broken))


def _align(one: Object, other: Object) -> None:
    """Moves fields of the template of `one` to the shorthands that `other` has."""
    template = one.get("template") or {}
    container, pod = find_trainer_container(template), template.get("spec") or {}
    for name in _IN_CONTAINER:
        if name in other and name in container:
            one[name] = container.pop(name)
    for name in shorthands.POD:
        if name in other and name in pod:
            one[name] = pod.pop(name)
    for name in shorthands.OF_NETWORK:
        if name in (other.get("network") or {}) and name in pod:
            one.setdefault("network", {})[name] = pod.pop(name)


def _merged(base: Any, own: Any, path: tuple[str, ...]) -> Any:
    if path in _WHOLE:
        return own
    if isinstance(base, dict) and isinstance(own, dict):
        both = {key: _merged(base[key], value, (*path, key)) for key, value in own.items() if key in base}
        return {**base, **own, **both}
    if isinstance(base, list) and isinstance(own, list) and path:
        if path[-1] in _ITEMS:
            key = _ITEMS[path[-1]]
            # In the order of the runtime's, because a variable can only refer to one in front of it.
            given = {_key(item, key): item for item in own}
            return list(({_key(item, key): item for item in base} | given).values())
        if path[-1] in _CONTAINERS:
            return _containers(base, own, path)
    return own


def _containers(base: list[Any], own: list[Any], path: tuple[str, ...]) -> list[Any]:
    """Returns the containers of both, in the order of the runtime's; those of one name are merged."""
    mine = {_key(item, "name"): item for item in own}
    theirs = [_merged(item, mine.pop(_key(item, "name"), {}), path) for item in base]
    return [*theirs, *mine.values()]


def _key(item: Any, key: str) -> str:
    return str(item.get(key)) if isinstance(item, dict) else repr(item)
