"""`spec.checkpoint`: where checkpoints are stored, and how often one is written."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from dtj_contract import names
from dtj_core.api.base_model import INT32_MAX, Model, OpenModel, Rule
from dtj_core.api.claim_template import ClaimTemplate

# No empty, "." or ".." segment, so that a path has one spelling except for a trailing slash; and no
# path of the system.
PLAIN_PATH = r"(/[^/:]+)+/?"
CLAIM_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"  # a claim of any other name can't exist
EVERY_STEPS = 100
SYSTEM_PATH = r"(/tmp|/dev|/dev/shm|/(dtj|proc)(/.*)?|(.*/)?\.\.?(/.*)?)/?"


class HostPath(Model):
    """A directory that exists on every node (a network file system, or a single-node test)."""

    path: Annotated[str, StringConstraints(max_length=1024, pattern="^/")]
    """Absolute path of the directory on the node."""
    type: Literal["", "Directory", "DirectoryOrCreate"] = "Directory"
    """Requirement for the directory. `Directory`: must exist. `DirectoryOrCreate`: the kubelet creates
    it, owned by root."""


class VolumeSource(OpenModel):
    """Exactly one volume source of a pod, as in `volumes[]` (nfs, csi, …), kept as written."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    empty_dir: dict[str, Any] | None = None
    """Rejected: an emptyDir is lost with its pod, and no other pod can read it."""

    @model_validator(mode="after")
    def _one_kind(self) -> VolumeSource:
        """Raises ValueError unless there is exactly one volume source.

        The CRD has minProperties and maxProperties for this rule, because CEL can't count fields
        that the schema does not name.
        """
        if len(self.model_fields_set) != 1:
            raise ValueError("must have exactly 1 property: one kind of volume")
        return self

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.emptyDir)",
            message="an emptyDir is lost with its pod: set claimName to a ReadWriteMany PersistentVolumeClaim instead",
            holds=lambda self: self.empty_dir is None,
            field="emptyDir",
        ),
    )


class CheckpointVolume(Model):
    """Volume that stores the checkpoints: set exactly one of the fields.

    All pods of the job mount this volume.
    """

    claim_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Name of a PersistentVolumeClaim in the job's namespace; ReadWriteMany if the job has more
    than one pod."""
    claim_template: ClaimTemplate | None = None
    """A claim `<job>-checkpoints` that the operator creates with the pods."""
    host_path: HostPath | None = None
    """A directory that exists on every node."""
    source: VolumeSource | None = None
    """Any other volume source of a pod, for instance `{nfs: {server: filer, path: /runs}}`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.claimName), has(self.claimTemplate), has(self.hostPath), has(self.source)]"
            ".filter(x, x).size() == 1",
            message="set exactly one of claimName, claimTemplate, hostPath and source",
            holds=lambda self: [self.claim_name, self.claim_template, self.host_path, self.source].count(None) == 3,
        ),
        Rule(
            cel=f"!has(self.claimName) || self.claimName.matches(r'^{CLAIM_NAME}$')",
            message="write a name of a-z, 0-9, '-' and '.', as every PersistentVolumeClaim has",
            holds=lambda self: self.claim_name is None or bool(re.fullmatch(CLAIM_NAME, self.claim_name)),
            field="claimName",
        ),
    )


class Checkpoint(Model):
    """Location and frequency of checkpoints.

    Without checkpoints, a restart begins at step 0, unless memory snapshots of the training library
    have survived.
    """

    volume: CheckpointVolume | None = None
    """Volume that stores the checkpoints: set exactly one field. All pods of the job mount it. Required,
    unless the runtime gives it."""
    mount_path: Annotated[str, StringConstraints(max_length=1024)] = names.DEFAULT_CHECKPOINT_DIR
    """Path at which the container mounts the volume. The job's own folder is
    `<mountPath>/<namespace>/<job>`."""
    every_steps: int = Field(default=EVERY_STEPS, ge=1, le=INT32_MAX)
    """Number of optimizer steps between two checkpoints, and so the most work that a restart can
    lose."""
    keep: int = Field(default=3, ge=1, le=1000)
    """Number of newest checkpoints to keep. A change while the job runs holds from the next attempt
    on."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!has(self.mountPath) || (self.mountPath.matches(r'^{PLAIN_PATH}$')"
            f" && !self.mountPath.matches(r'^{SYSTEM_PATH}$'))",
            message="set mountPath to an absolute path such as /checkpoints;"
            " /, /tmp, /dev, /dev/shm and paths inside /dtj and /proc are reserved",
            holds=lambda self: bool(
                re.fullmatch(PLAIN_PATH, self.mount_path) and not re.fullmatch(SYSTEM_PATH, self.mount_path)
            ),
            field="mountPath",
        ),
    )
