"""Takes the objects out of an AppWrapper (workload.codeflare.dev), which Kueue admits as one. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from dtj.convert.fields import Draft, Field, carry
from dtj.convert.meta import KUEUE, METADATA
from dtj_contract import names
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object

KIND = "AppWrapper"
_COUNTED = "Kueue counts the pods of the job itself"
_OWN = "no AppWrapper is left: write it on the job"
FIELDS = (
    Field("apiVersion", How.SAME, "training.dtj.dev/v1alpha1"),
    Field("kind", How.SAME, "DistributedTrainingJob"),
    Field("metadata.name", How.NOT_NEEDED, "the job keeps its own name"),
    Field("metadata.namespace", How.OTHER, "metadata.namespace of a job that has none"),
    Field(f"metadata.labels.{names.LABEL_QUEUE}", How.OTHER, "spec.queueName of a job that has none"),
    Field("metadata.labels.kueue.x-k8s.io/**", How.NOT_CARRIED, KUEUE),
    Field("metadata.labels.**", How.NOT_CARRIED, _OWN),
    Field("metadata.annotations.kubectl.kubernetes.io/last-applied-configuration", How.NOT_NEEDED, "kubectl writes it"),
    Field(
        "metadata.annotations.workload.codeflare.dev.appwrapper/**",
        How.NOT_CARRIED,
        "the agents and the operator restart the training: see spec.restart and spec.ttlSecondsAfterFinished",
    ),
    Field("metadata.annotations.**", How.NOT_CARRIED, _OWN),
    *(one for one in METADATA if one.how is How.NOT_NEEDED and "annotations" not in one.path),
    Field("spec.components[].podSets.**", How.NOT_NEEDED, _COUNTED),
    Field("spec.components[].podSetInfos.**", How.NOT_NEEDED, _COUNTED),
    Field("spec.components[].annotations.**", How.NOT_CARRIED, _OWN),
    Field("spec.suspend", How.NOT_NEEDED, "Kueue sets it"),
    Field("spec.managedBy", How.NOT_CARRIED, _OWN),
)


def unwrapped(found: Sequence[Object]) -> tuple[list[Object], Draft]:
    """Returns the objects with those of each AppWrapper in its place, and the notes about the wrappers."""
    objects: list[Object] = []
    draft = Draft()
    for one in found:
        components = (one.get("spec") or {}).get("components") if one.get("kind") == KIND else None
        if not isinstance(components, list) or not all(isinstance(each, dict) for each in components):
            objects.append(one)
            continue
        bare = copy.deepcopy(one)
        for each in bare["spec"]["components"]:
            each.pop("template", None)
        carry(FIELDS, bare, draft, f"{KIND} {(one.get('metadata') or {}).get('name', '')}: ")
        objects += [_inside(each["template"], one) for each in components if isinstance(each.get("template"), dict)]
    return objects, draft


def _inside(template: Object, wrapper: Object) -> Object:
    """Returns an object with the namespace and the queue of its AppWrapper, where it has none."""
    outer = wrapper.get("metadata") or {}
    inner = dict(template.get("metadata") or {})
    if outer.get("namespace"):
        inner.setdefault("namespace", outer["namespace"])
    if queue := (outer.get("labels") or {}).get(names.LABEL_QUEUE):
        inner["labels"] = {names.LABEL_QUEUE: queue, **(inner.get("labels") or {})}
    return {**template, "metadata": inner}
