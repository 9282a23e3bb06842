"""Fields of a pod template, and where each of them is in our job. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

from dtj.convert.fields import Draft, Field, as_object
from dtj.errors import InputError
from dtj_contract import names
from dtj_core.api.accelerators import GPUS
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object

NO_IMAGE = (
    "no container image: a pod needs one with Python 3.9, torch and the script: give --image, for instance"
    " --image pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
)
OUR_LABELS = re.compile(rf"{names.GROUP}/|apps\.kubernetes\.io/pod-index$|statefulset\.kubernetes\.io/pod-name$")
"""Labels that the pods of a job have anyway."""
_DEVICE = re.compile(r"hugepages-|(?!kubernetes\.io/)[^/]+/")
POD_FIELDS = (
    Field("spec.containers[].image", How.SAME, "spec.image"),
    Field(
        "spec.containers[].command",
        How.SAME,
        "spec.entrypoint for `python3 SCRIPT` and `python3 -m MODULE`, without a launcher; else the command of"
        " the container",
    ),
    Field("spec.containers[].args", How.SAME, "spec.entrypoint.args, behind those in command"),
    Field(
        "spec.containers[].resources.limits.nvidia.com/gpu",
        How.SAME,
        "the same place; also the default of spec.processesPerPod",
    ),
    Field("spec.containers[].name", How.SAME, "the same place; `trainer` if the pod has several containers"),
    Field("spec.restartPolicy", How.NOT_NEEDED, "a failure restarts the group: spec.restart"),
    Field("metadata.creationTimestamp", How.NOT_NEEDED, "the API server writes it"),
    Field("metadata.**", How.SAME, "spec.template.metadata"),
    Field(
        "spec.**",
        How.SAME,
        "spec.template.spec, as written: env, envFrom, volumes, nodeSelector, tolerations, affinity, "
        "imagePullSecrets, securityContext, serviceAccountName, initContainers, sidecars and all others",
    ),
)


def take(template: Object, draft: Draft, where: str, preferred: Sequence[str]) -> tuple[Object, Object, str]:
    """Returns a copy of a pod template as our job may hold it, its training container, and the container's place.

    `preferred` holds names of the training container; an only container needs none of them.
    Raises InputError if no container trains.
    """
    template = copy.deepcopy(template)
    pod = as_object(template.setdefault("spec", {}), f"{where}.spec")
    containers = pod.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(one, dict) for one in containers) or not containers:
        raise InputError(f"{where}.spec.containers: write the container that trains")
    chosen = next((at for name in preferred for at, one in enumerate(containers) if one.get("name") == name), 0)
    if len(containers) > 1 and containers[chosen].get("name") not in (*preferred, names.CONTAINER):
        raise InputError(
            f"{where}.spec.containers: name the container that trains {preferred[0]!r}, because there are several"
        )
    place = f"{where}.spec.containers[{chosen}]"
    container = containers[chosen]
    if len(containers) > 1 and container["name"] != names.CONTAINER:
        for at, other in enumerate(containers):
            if other.get("name") == names.CONTAINER:
                text = f"{names.CONTAINER!r} is the name of the container that trains: write another"
                raise InputError(f"{where}.spec.containers[{at}].name: {text}")
        draft.note(How.OTHER, f"{place}.name", f"the name is now {names.CONTAINER!r}", container["name"])
        container["name"] = names.CONTAINER
    container.setdefault("name", names.CONTAINER)
    if (policy := pod.pop("restartPolicy", None)) is not None:
        draft.note(How.NOT_NEEDED, f"{where}.spec.restartPolicy", "a failure restarts the group: spec.restart", policy)
    metadata = template.get("metadata") or {}
    if "creationTimestamp" in metadata:
        metadata.pop("creationTimestamp")
        draft.note(How.NOT_NEEDED, f"{where}.metadata.creationTimestamp", "the API server writes it")
    return template, container, place


def tokens(container: Object, name: str, place: str) -> list[str]:
    """Returns the command or args of a container. Raises InputError if they are no list of texts."""
    value = container.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(
            f'{place}.{name}: write a list of texts, such as ["python3", "train.py"], with numbers in quotes'
        )
    return list(value)


def command(container: Object, place: str, given: Sequence[str] | None, missing: str) -> list[str]:
    """Returns command and args of a container. `given` is the image's own command, for a container without one.

    `missing` is the place where the file lacks one. Raises InputError if there are two commands, or none.
    """
    own = tokens(container, "command", place)
    if own and given:
        raise InputError(f"--command: {place}.command is in the file: change it there")
    if not (own or given):
        raise InputError(
            f"{missing}.command: the container names no command, and the image's own is not in the file: write it"
            " there, or give --command 'python3 train.py'"
        )
    return [*(own or given or ()), *tokens(container, "args", place)]


def literal_env(container: Object) -> dict[str, str]:
    """Returns the variables of a container whose value is in the file."""
    env = container.get("env") or []
    return {one["name"]: str(one["value"]) for one in env if isinstance(one, dict) and "value" in one and "name" in one}


def gpus(container: Object) -> int:
    """Returns the number of GPUs that a container requests."""
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        for gpu in GPUS:
            amount = str((resources.get(kind) or {}).get(gpu, ""))
            if amount.isdecimal():
                return int(amount)
    return 0


def _drop_open_amounts(container: Object, draft: Draft, place: str) -> None:
    """Removes resources without an amount, as a template leaves them that nobody has filled in."""
    for kind, amounts in (container.get("resources") or {}).items():
        for name in [name for name, amount in (amounts or {}).items() if amount in (None, "")]:
            amounts.pop(name)
            draft.note(How.NOT_CARRIED, f"{place}.resources.{kind}.{name}", "no amount is in the file: write it")


def _limit_devices(container: Object, draft: Draft, place: str) -> None:
    """Writes a request for a device as its limit too, without which the API server rejects the pods."""
    resources = container.get("resources") or {}
    for name, amount in (resources.get("requests") or {}).items():
        if _DEVICE.match(name) and name not in (resources.get("limits") or {}):
            resources["limits"] = {**(resources.get("limits") or {}), name: amount}
            text = "the same in limits too, which the API server wants for it"
            draft.note(How.OTHER, f"{place}.resources.requests.{name}", text, amount)


def _note_labels(template: Object, draft: Draft, place: str) -> None:
    """Notes variables that read a label or an annotation of the pod which the file does not set."""
    before, found, _ = place.rpartition(".containers[")
    pod = f"{before}." if found else ""
    held = template.get("metadata") or {}
    for kind in ("initContainers", "containers"):
        for at, container in enumerate(template["spec"].get(kind) or []):
            for number, variable in enumerate(container.get("env") or []):
                path = str((((variable.get("valueFrom") or {}).get("fieldRef")) or {}).get("fieldPath") or "")
                match = re.fullmatch(r"metadata\.(labels|annotations)\['?([^']+?)'?\]", path)
                if match and match[2] not in (held.get(match[1]) or {}) and not OUR_LABELS.match(match[2]):
                    text = "the pods have it from another system: read RANK, or GROUP_RANK, the pod's number, instead"
                    draft.note(How.NOT_CARRIED, f"{pod}{kind}[{at}].env[{number}]", text, path)


def finish(template: Object, container: Object, draft: Draft, place: str) -> None:
    """Puts image and template into the job, without what is empty. `place` is that of the container in the file."""
    image = container.pop("image", None)
    if not image:
        raise InputError(f"{place}.image: required: write the image that holds Python 3.9, torch and the script")
    draft.put("spec.image", image)
    _drop_open_amounts(container, draft, place)
    _limit_devices(container, draft, place)
    _note_labels(template, draft, place)
    for empty in [name for name, value in container.items() if value in (None, [], {}) and name != "name"]:
        container.pop(empty)
    pod = template["spec"]
    if list(container) == ["name"] and len(pod["containers"]) == 1:
        pod.pop("containers")
        if container["name"] != names.CONTAINER:
            draft.note(How.OTHER, f"{place}.name", f"the name is now {names.CONTAINER!r}", container["name"])
    if not template.get("metadata"):
        template.pop("metadata", None)
    if not pod:
        template.pop("spec")
    if template:
        draft.put("spec.template", template)
