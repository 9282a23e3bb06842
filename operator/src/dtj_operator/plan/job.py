"""The job as the policies see it: identity, typed spec, and the status that was written last."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from dtj_agent import names
from dtj_operator import api
from dtj_operator.api.v1alpha1 import Spec
from dtj_operator.plan.model import Object

SHAPES_PODS = {"replicas", "processes_per_pod", "backend", "entrypoint", "image", "template", "checkpoint", "restart"}


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    status: Object
    """As stored; {} at first. Never changed in place."""

    @classmethod
    def of(cls, obj: Object) -> Job:
        """Raises api.InvalidJob if the stored object breaks a rule (another version of the CRD let it in)."""
        metadata = obj["metadata"]
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", "default"),
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            spec=api.read(obj).spec,
            status=obj.get("status") or {},
        )

    @cached_property
    def spec_hash(self) -> str:
        """Digest of the part of the spec that shapes pods.

        Of the spec and not of what is made from it, and without fields that have their default: a new version of the
        operator or of the CRD must not restart jobs that run.
        """
        shape = self.spec.model_dump(mode="json", by_alias=True, include=SHAPES_PODS, exclude_defaults=True)
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def trainer_container(self) -> str:
        """Name of the container that trains."""
        return str(self.spec.trainer.get("name", names.CONTAINER))

    @property
    def secret_name(self) -> str:
        """Name of the Secret that holds the agents' key."""
        return f"{self.name}-dtj-agent"  # not a name that somebody else's Secret is likely to have: ours is applied by force

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


def is_owned(child: Object, uid: str) -> bool:
    """An owner of `child` has this uid."""
    return any(owner.get("uid") == uid for owner in child["metadata"].get("ownerReferences") or ())
