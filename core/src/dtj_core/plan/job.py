"""The job as the policies see it: identity, typed spec, and stored status."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from dtj_contract import names
from dtj_core import api
from dtj_core.api.v1alpha1 import Spec
from dtj_core.plan import shape
from dtj_core.plan.model import Object

MEMO = 2048
"""Specs that are kept as they were read: a job that runs is planned twice a minute, and its spec rarely changes.

Reading it and hashing its shape is a fifth of the CPU that a reconcile takes.
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    status: Object
    """As stored; {} for a new job. Never changed in place."""
    stored_spec: Object = field(repr=False)
    """As stored, including fields that this version does not know."""

    unreadable: str | None = None
    """Violations in the spec that this version can't read; None if all of it is valid."""

    @classmethod
    def from_object(cls, obj: Object) -> Job:
        """Returns a stored job.

        Raises api.InvalidJob if its spec breaks a rule, because another version of the CRD admitted it.
        """
        return cls._build(obj, _read(_text({**obj, "metadata": {"name": obj["metadata"]["name"]}, "status": None})))

    @classmethod
    def salvage(cls, obj: Object, unreadable: str) -> Job:
        """Returns a stored job without the unreadable part of its spec.

        The result is enough to follow the job, and not enough to create its pods.
        """
        return cls._build(obj, api.salvage(obj), unreadable)

    @classmethod
    def _build(cls, obj: Object, spec: Spec, unreadable: str | None = None) -> Job:
        metadata = obj["metadata"]
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", "default"),
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            spec=spec,
            status=obj.get("status") or {},
            stored_spec=obj.get("spec") or {},
            unreadable=unreadable,
        )

    @property
    def is_renderable(self) -> bool:
        """Whether the pods follow from the spec: all of it can be read, and its runtime is in it."""
        return self.unreadable is None and self.spec.runtime_ref is None

    @cached_property
    def spec_hash(self) -> str:
        """Digests of the part of the spec that shapes pods (shape.py).

        Every version of the operator reads them alike.
        """
        return _shape(_text(self.stored_spec))

    @property
    def pod_count(self) -> int:
        """Number of pods that the job has, spares included."""
        return self.spec.replicas + self.spec.spares

    @property
    def least_pods(self) -> int:
        """Number of pods without which no attempt can start."""
        return self.spec.elastic.min_replicas if self.spec.elastic is not None else self.spec.replicas

    @cached_property
    def trainer_container(self) -> str:
        """Name of the trainer container."""
        return str(self.spec.trainer.get("name", names.CONTAINER))

    @property
    def secret_name(self) -> str:
        """Name of the Secret that holds the agents' key."""
        # A name that nobody else's Secret is likely to have, because ours is applied by force.
        return f"{self.name}-dtj-agent"

    @property
    def policy_name(self) -> str:
        """Name of the NetworkPolicy, which is applied by force, too."""
        return self.secret_name

    @property
    def owner_reference(self) -> Object:
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    def owns(self, child: Object) -> bool:
        return is_owned(child, self.uid)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@lru_cache(MEMO)
def _read(text: str) -> Spec:
    return api.read(json.loads(text)).spec


@lru_cache(MEMO)
def _shape(text: str) -> str:
    return shape.spec_shape(json.loads(text))


def is_owned(child: Object, uid: str) -> bool:
    """Returns whether an owner of `child` has this uid."""
    return any(owner.get("uid") == uid for owner in child["metadata"].get("ownerReferences") or ())
