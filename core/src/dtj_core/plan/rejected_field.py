"""Names the field of the job that a rejection of its children is about.

The API server names fields of the StatefulSet or of the pod. There, the agent's variables come
before the user's, and a shorthand has the place that it is short for. Some of its messages name no
field at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dtj_contract import names
from dtj_core.api.shorthands import CONTAINER, POD
from dtj_core.plan.agent_environment import agent_environment
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Settings

IN_TEMPLATE = "spec.template.spec"
# As in `Pod "j" is invalid: spec.containers[0].env[3].name: Required value`, with all that may follow
# `containers` in a path. A server-side apply puts a dot before it, and has the names of items for their indices.
_START = r"(?<![\w.])\.?"
_PATH = re.compile(_START + r"(?:spec\.template\.)?spec\.([a-z]\w*(?:\[[^]]*\]|\.[a-z]\w*)*)")
_NAMED = re.compile(r'(containers|initContainers|volumes)\[name="([^"]*)"\](.*)')
_CONTAINER = re.compile(r"containers\[(\d+)\](?:\.(\w+))?(?:\[(\d+)\])?(.*)")
_INIT_CONTAINER = re.compile(r"initContainers\[(\d+)\](.*)")
_VOLUME = re.compile(r"volumes\[(\d+)\](.*)")
_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]+)")
# The parser of the API server, which names no field.
BAD_QUANTITY = re.compile("quantit(y|ies) must match|unable to parse quantity")
# Messages about an object that a field names: they name the object only.
MISSING_OBJECTS = (
    ("no PriorityClass with name", "priorityClassName"),
    ("service account", "serviceAccountName"),
    ("RuntimeClass", "runtimeClassName"),
)
OF_VOLUMES = {names.VOLUME_CHECKPOINT: "spec.checkpoint.volume", names.VOLUME_SHM: "spec.shmSize"}


def explain(message: str | None, job: Job, settings: Settings) -> str | None:
    """Returns the message of the API server with the fields of the job that it is about."""
    if message is None:
        return None
    found = dict.fromkeys(_fields(message, job, settings))
    missing = [path for path in found if not re.search(_START + re.escape(path), message)]
    return f"{message}; in the job: {', '.join(missing)}" if missing else message


def _fields(message: str, job: Job, settings: Settings) -> Iterator[str]:
    if BAD_QUANTITY.search(message):
        yield from (f"{path} ({value!r} is no quantity)" for path, value in _bad_quantities(job))
    for text, field in MISSING_OBJECTS:
        if text in message:
            yield _in_pod(job, field)
    for path in _PATH.findall(message):
        yield from _in_job(job, _numbered(job, path, settings), settings)


def _numbered(job: Job, path: str, settings: Settings) -> str:
    """Returns a path with the index of a container or volume in the pod instead of its name."""
    found = _NAMED.fullmatch(path)
    if found is None:
        return path
    kind, name, rest = found.groups()
    items = [item.get("name") for item in ((job.spec.template or {}).get("spec") or {}).get(kind) or ()]
    items = items or ([names.CONTAINER] if kind == "containers" else [])
    place = items.index(name) if name in items else len(items) if name in OF_VOLUMES else None
    if kind == "initContainers" and settings.agent_delivery == "init-container":
        place = 0 if place is None else place + 1
    return path if place is None else f"{kind}[{place}]{rest}"


def _in_pod(job: Job, field: str) -> str:
    """Returns the path of a field of the pod: that of its shorthand if the job has set it."""
    name = re.split(r"[.[]", field)[0]
    if name in POD and job.stored_spec.get(name) is not None:
        return f"spec.{field}"
    if name in ("hostNetwork", "dnsPolicy") and (job.stored_spec.get("network") or {}).get(name) is not None:
        return f"spec.network.{field}"
    return f"{IN_TEMPLATE}.{field}"


def _in_job(job: Job, path: str, settings: Settings) -> Iterator[str]:
    """Yields the path in the job for a path in the pod; nothing if the part of the pod is the operator's."""
    if found := _INIT_CONTAINER.fullmatch(path):
        index = int(found[1]) - (settings.agent_delivery == "init-container")  # ours is the first
        if index >= 0:
            yield f"{IN_TEMPLATE}.initContainers[{index}]{found[2]}"
    elif found := _VOLUME.fullmatch(path):
        yield from _volume(job, int(found[1]), found[2])
    elif found := _CONTAINER.fullmatch(path):
        yield from _container(job, int(found[1]), found, settings)
    else:
        yield _in_pod(job, path)


def _volume(job: Job, index: int, rest: str) -> Iterator[str]:
    given = ((job.spec.template or {}).get("spec") or {}).get("volumes") or ()
    if index < len(given):
        yield f"{IN_TEMPLATE}.volumes[{index}]{rest}"
    elif job.spec.checkpoint is not None:
        # The checkpoints are the last volume of ours, and the only one that the job describes.
        yield OF_VOLUMES[names.VOLUME_CHECKPOINT]


def _container(job: Job, index: int, found: re.Match[str], settings: Settings) -> Iterator[str]:
    containers = ((job.spec.template or {}).get("spec") or {}).get("containers") or [{"name": names.CONTAINER}]
    field, item, rest = found[2], found[3], found[4]
    is_trainer = index < len(containers) and containers[index].get("name") == job.trainer_container
    at = f"{IN_TEMPLATE}.containers[{index}]"
    if not is_trainer:
        yield at + "".join((f".{field}" if field else "", f"[{item}]" if item else "", rest))
        return
    if field == "env" and item is not None:
        place = int(item) - _agent_variables(job, settings)
        if place < 0:
            return
        item = str(place)
    if field in ("image", *CONTAINER) and job.stored_spec.get(field) is not None:
        at = "spec"
    yield at + "".join((f".{field}" if field else "", f"[{item}]" if item is not None else "", rest))


def _agent_variables(job: Job, settings: Settings) -> int:
    """Returns how many variables of the trainer container come before the user's."""
    return len(agent_environment(job, settings, attempt_floor=1, grace_seconds=30, termination_log=""))


def _bad_quantities(job: Job) -> Iterator[tuple[str, Any]]:
    """Yields path and value of each quantity of the job that is none."""
    spec: Object = job.stored_spec
    yield from _of_resources("spec.resources", spec.get("resources"))
    pod = (spec.get("template") or {}).get("spec") or {}
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(pod.get(kind) or ()):
            yield from _of_resources(f"{IN_TEMPLATE}.{kind}[{index}].resources", container.get("resources"))
    yield from _of_map(f"{IN_TEMPLATE}.overhead", pod.get("overhead"))
    for index, volume in enumerate(pod.get("volumes") or ()):
        limit = (volume.get("emptyDir") or {}).get("sizeLimit")
        if limit is not None and not _is_quantity(limit):
            yield f"{IN_TEMPLATE}.volumes[{index}].emptyDir.sizeLimit", limit


def _of_resources(path: str, resources: Any) -> Iterator[tuple[str, Any]]:
    for kind in ("limits", "requests"):
        yield from _of_map(f"{path}.{kind}", (resources or {}).get(kind))


def _of_map(path: str, quantities: Any) -> Iterator[tuple[str, Any]]:
    for name, value in (quantities or {}).items():
        if value is not None and not _is_quantity(value):
            yield f"{path}.{name}", value


def _is_quantity(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and _QUANTITY.fullmatch(value) is not None)
