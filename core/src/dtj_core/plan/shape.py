"""The shape of a spec: the part that shapes pods, as all versions read it alike.

A running job must survive an upgrade and a rollback of operator and CRD. A shape is therefore
computed from the spec as stored, not from this version's models, and holds one digest per field.
Two versions compare the fields that both know.

FIELDS is frozen: an entry keeps its default for the life of v1alpha1, whatever the CRD's default
becomes. An entry may leave it if the field can change while the job runs; an older operator still
compares it (docs/runbook.md, "Upgrades and rollbacks"). A missing field equals one that has the
default of the table, because the API server fills in a default that its CRD gained after the job was
stored. Whoever adds a field to the API adds it here with its first default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from dtj_core.plan.model import Object

FIELDS: dict[str, Any] = {
    "replicas": 1,
    "processesPerPod": None,
    "backend": "auto",
    "entrypoint.script": None,
    "entrypoint.module": None,
    "entrypoint.args": [],
    "image": None,
    "template": None,
    "checkpoint.volume.claimName": None,
    "checkpoint.volume.hostPath.path": None,
    "checkpoint.volume.hostPath.type": "Directory",
    "checkpoint.volume.source": None,
    "checkpoint.mountPath": "/checkpoints",
    "checkpoint.everySteps": 100,
    "restart.stopGraceSeconds": None,
    "restart.rules": [],
    "warmWorkers": "Auto",
    "preload": [],
    "kubeflowProgress": "Auto",
    "hangDetection.policy": "Restart",
    "hangDetection.minSeconds": None,
    "progressDeadlineSeconds": None,
    "spares": 0,
    "elastic.minReplicas": None,
    "elastic.maxReplicas": None,
    "elastic.waitSeconds": 10,
    "elastic.batch": "Global",
    "elastic.learningRate": "Keep",
    "processesFrom": None,
    "env": None,
    "envFrom": None,
    "resources": None,
    "nodeSelector": None,
    "tolerations": None,
    "priorityClassName": None,
    "imagePullSecrets": None,
    "shmSize": None,
    "network.hostNetwork": None,
    "network.interface": None,
    "network.dnsPolicy": None,
    "queueName": None,
    "checkpoint.volume.claimTemplate.size": None,
    "checkpoint.volume.claimTemplate.storageClassName": None,
    "checkpoint.volume.claimTemplate.accessModes": ["ReadWriteMany"],
    "checkpoint.volume.claimTemplate.whenDeleted": "Retain",
    "gang.podGroup": None,
    "gang.schedulerName": None,
    "gang.queue": None,
    "successPolicy": "AllRanks",
    "engine": "torch",
}
_NAMES = {path: path.split(".") for path in FIELDS}
DIGITS = 12
DEFAULT = "default"


def spec_shape(spec: Object) -> str:
    """Returns the shape of a stored spec as text: `field=digest` for every field of the table."""
    return ",".join(f"{path}={_digest(spec, path)}" for path in FIELDS)


def shapes_differ(one: str, other: str, free: Collection[str] = ()) -> bool:
    """Returns whether two shapes differ in a field that both of them know and that is not `free`."""
    if one == other:
        return False
    first, second = _fields(one), _fields(other)
    return any(first[path] != second[path] for path in (first.keys() & second.keys()) - set(free))


def _digest(spec: Object, path: str) -> str:
    value: Any = spec
    for name in _NAMES[path]:
        value = value.get(name) if isinstance(value, dict) else None
    value = _without_nulls(value)
    if value is None or value == FIELDS[path]:
        return DEFAULT
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _without_nulls(value: Any) -> Any:
    """Drops nulls, because the API server drops a null only where its CRD names the field."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _fields(shape: str) -> dict[str, str]:
    """Returns digest by field.

    Text without fields, such as the single digest of an operator before 0.2, has none to compare.
    """
    return dict(part.split("=", 1) for part in shape.split(",") if "=" in part)
