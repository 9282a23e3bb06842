"""`spec.checkpoint.volume.claimTemplate`: the claim that the operator creates for checkpoints."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from dtj_core.api.base_model import Model, Rule

AccessMode = Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]
SUFFIX = "-checkpoints"
SIZE = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)([kMGTPE]|[KMGTPE]i)?$"


class ClaimTemplate(Model):
    """PersistentVolumeClaim that the operator creates.

    The operator never changes a claim of its name that exists already.
    """

    size: Annotated[str, StringConstraints(max_length=32, pattern=SIZE)]
    """Storage to request, such as `500Gi`; more than nothing."""
    storage_class_name: Annotated[str, StringConstraints(max_length=253)] | None = None
    """StorageClass of the volume. Default: that of the cluster."""
    access_modes: list[AccessMode] = Field(default=["ReadWriteMany"], min_length=1, max_length=3)
    """Access modes to request. Pods on several nodes need ReadWriteMany; with ReadWriteOnce all pods
    must be on one node."""
    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """Fate of the claim when the job is deleted. Retain: it stays, and a job of the same name
    resumes from it. Delete: Kubernetes deletes the claim, and with most StorageClasses its data."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!self.accessModes.exists(m, m == 'ReadWriteOncePod') || size(self.accessModes) == 1",
            message="ReadWriteOncePod can't be combined with another access mode",
            holds=lambda self: "ReadWriteOncePod" not in self.access_modes or len(self.access_modes) == 1,
            field="accessModes",
        ),
    )


def claim_name(job: str) -> str:
    """Returns the name of the claim that the operator creates for a job."""
    return job + SUFFIX
