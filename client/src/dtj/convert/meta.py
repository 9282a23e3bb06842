"""Metadata that every Kubernetes object has, and what becomes of it. Pure."""

from __future__ import annotations

import re
from typing import Any

from dtj.convert.fields import Draft, Field
from dtj.errors import InputError
from dtj_contract import names
from dtj_core.api.launcher_flags import How
from dtj_core.api.v1alpha1 import NAME_LENGTH, NAME_PATTERN
from dtj_core.plan.model import Object

KUEUE = "Kueue reads it from a workload of its own kinds: set it on the StatefulSet by hand, or leave it out"
_SERVER = "the API server writes it"
METADATA = (
    Field("apiVersion", How.SAME, "training.dtj.dev/v1alpha1"),
    Field("kind", How.SAME, "DistributedTrainingJob"),
    Field("metadata.name", How.SAME, f"the same place; at most {NAME_LENGTH} characters"),
    Field("metadata.generateName", How.OTHER, "metadata.name without a random ending: --name gives another"),
    Field("metadata.namespace", How.SAME, "the same place"),
    Field(
        f"metadata.labels.{names.LABEL_QUEUE}",
        How.OTHER,
        "spec.queueName; Kueue's integration for StatefulSets must be enabled",
    ),
    Field("metadata.labels.kueue.x-k8s.io/**", How.NOT_CARRIED, KUEUE),
    Field("metadata.labels.**", How.SAME, "the same place"),
    Field("metadata.annotations.kubectl.kubernetes.io/last-applied-configuration", How.NOT_NEEDED, "kubectl writes it"),
    Field("metadata.annotations.**", How.SAME, "the same place"),
    *(
        Field(f"metadata.{name}.**", How.NOT_NEEDED, _SERVER)
        for name in ("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "selfLink")
    ),
    Field(
        "metadata.ownerReferences.**",
        How.NOT_CARRIED,
        "the owner would have to own the new job: let the owner create it",
    ),
    Field("metadata.finalizers.**", How.NOT_CARRIED, "the controller that set it does not know the new job"),
    Field("status.**", How.NOT_NEEDED, "the operator writes it"),
)


def take(source: Object, draft: Draft, name: str | None) -> None:
    """Writes the job's metadata. `name` takes the place of the name in the file."""
    metadata = source.get("metadata") or {}
    found = name or metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-.")
    if not isinstance(found, str) or not found:
        raise InputError("metadata.name: required; write it, or give --name")
    made: dict[str, Any] = {"name": found}
    if metadata.get("namespace"):
        made["namespace"] = metadata["namespace"]
    labels = {
        key: value for key, value in (metadata.get("labels") or {}).items() if not key.startswith("kueue.x-k8s.io/")
    }
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    for key, value in (("labels", labels), ("annotations", annotations)):
        if value:
            made[key] = value
    draft.job["metadata"] = made
    if queue := (metadata.get("labels") or {}).get(names.LABEL_QUEUE):
        draft.put("spec.queueName", queue)


def valid_name(text: str, draft: Draft, where: str) -> str:
    """Returns `text` as the name of a job, and notes a change."""
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    name = (name if re.match("[a-z]", name) else f"job-{name}")[:NAME_LENGTH].rstrip("-")
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"{where}: no name can be made of {text!r}: give --name")
    if name != text:
        draft.note(How.OTHER, where, f"metadata.name: {name}, which pods and Services can have", text)
    return name
