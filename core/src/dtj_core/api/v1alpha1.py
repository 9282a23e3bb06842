"""`training.dtj.dev/v1alpha1` DistributedTrainingJob: fields, defaults, bounds and rules. `make generate` writes the CRD."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from dtj_contract import names
from dtj_core.api.rules import Model, OpenModel, Rule
from dtj_core.api.status import Status
from dtj_core.api.template import Argument, find_trainer_container

__all__ = ["DistributedTrainingJob", "Spec", "find_trainer_container"]

INT32_MAX = 2**31 - 1
NAME_LENGTH = 52  # a StatefulSet's name and a hash of 10 make a label value of its pods, and those end at 63
# No empty, "." or ".." part, so that a path has one spelling but for a slash at its end; and none of the system's.
PLAIN_PATH = r"(/[^/:]+)+/?"
SYSTEM_PATH = r"(/tmp|/dev|/dev/shm|/dtj|/dtj/.*|(.*/)?\.\.?(/.*)?)/?"
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"  # of a Service, which is the strictest of the children
GPUS = ("nvidia.com/gpu", "amd.com/gpu")  # one rank each, over NCCL; ROCm's RCCL bears that name in PyTorch
OTHER_ACCELERATORS = re.compile(
    r"nvidia\.com/(mig-|gpu[.-]).+|amd\.com/.+|gpu\.intel\.com/.+|habana\.ai/gaudi.*|aws\.amazon\.com/neuron.*|google\.com/tpu"
    r"|huawei\.com/Ascend.*|cambricon\.com/.+|mthreads\.com/.+|metax-tech\.com/.+"
)


class Entrypoint(Model):
    """What every rank runs: `python3 -u SCRIPT ARGS…` or `python3 -u -m MODULE ARGS…`."""

    script: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Path of a Python file in the image."""
    module: Annotated[str, StringConstraints(max_length=1024, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")] | None = None
    """Python module in the image, as `python3 -m` takes it."""
    args: list[Argument] = Field(default=[], max_length=512)
    """Arguments of the script or module."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.script) != has(self.module)",
            message="set either script (a path) or module (as in python3 -m), not both and not neither",
            holds=lambda self: (self.script is None) != (self.module is None),
        ),
    )


class HostPath(Model):
    """A directory of every node (a mounted network file system, or a single-node test)."""

    path: Annotated[str, StringConstraints(max_length=1024, pattern="^/")]
    """Absolute path of the directory on the node."""
    type: Literal["", "Directory", "DirectoryOrCreate"] = "Directory"
    """`Directory`: it must be there; `DirectoryOrCreate`: the kubelet makes it, owned by root."""


class VolumeSource(OpenModel):
    """Any one volume source of a pod, as in `volumes[]` (nfs, csi, …), kept as written."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    empty_dir: dict[str, Any] | None = None
    """Refused: an emptyDir is lost with its pod, and no other pod sees it."""

    @model_validator(mode="after")
    def _one_kind(self) -> VolumeSource:
        """What minProperties and maxProperties say: CEL can't count fields that the schema does not name."""
        if len(self.model_fields_set) != 1:
            raise ValueError("should have exactly 1 property: one kind of volume")
        return self

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.emptyDir)",
            message="an emptyDir is lost with its pod: use claimName of a ReadWriteMany PersistentVolumeClaim",
            holds=lambda self: self.empty_dir is None,
            field="emptyDir",
        ),
    )


class CheckpointVolume(Model):
    """Where checkpoints are kept: exactly one of its fields. All pods of the job mount it."""

    claim_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """A PersistentVolumeClaim in the job's namespace; ReadWriteMany if the job has more than one pod."""
    host_path: HostPath | None = None
    """A directory of every node."""
    source: VolumeSource | None = None
    """Any other volume source of a pod, for instance `{nfs: {server: filer, path: /runs}}`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.claimName), has(self.hostPath), has(self.source)].filter(x, x).size() == 1",
            message="set exactly one of claimName, hostPath and source",
            holds=lambda self: [self.claim_name, self.host_path, self.source].count(None) == 2,
        ),
    )


class Checkpoint(Model):
    """How and where the trainer saves its state. Without it a restart begins at step 0."""

    volume: CheckpointVolume
    """Where checkpoints are kept."""
    mount_path: Annotated[str, StringConstraints(max_length=1024)] = names.DEFAULT_CHECKPOINT_DIR
    """Where the volume is mounted in the container. The job's own folder is `<mountPath>/<namespace>/<job>`."""
    every_steps: int = Field(default=100, ge=1, le=INT32_MAX)
    """A checkpoint every so many optimizer steps: also the most work that a restart can lose."""
    keep: int = Field(default=3, ge=1, le=1000)
    """How many of the newest checkpoints are kept."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.mountPath.matches(r'^{PLAIN_PATH}$') && !self.mountPath.matches(r'^{SYSTEM_PATH}$')",
            message="must be an absolute path of its own, such as /checkpoints; not /, /tmp, /dev, /dev/shm or inside /dtj",
            holds=lambda self: bool(re.fullmatch(PLAIN_PATH, self.mount_path) and not re.fullmatch(SYSTEM_PATH, self.mount_path)),
            field="mountPath",
        ),
    )


class Restart(Model):
    """How many failures of its own a job may have. Preempted, evicted and deleted pods never count."""

    max_restarts: int = Field(default=10, ge=0, le=1000)
    """Restarts within windowSeconds; a new checkpoint empties the count. The next failure ends the job."""
    window_seconds: int = Field(default=3600, ge=1, le=INT32_MAX)
    """Length of the sliding window in seconds."""
    stop_grace_seconds: float | None = Field(default=None, ge=0, le=600)
    """What a failed group's workers have from SIGTERM to SIGKILL, 0.5 if not given. More lets their handlers save; every
    restart may then take as long, for a rank that waits in a collective runs no handler."""


_CONTAINERS = "has(self.template) && has(self.template.spec) && has(self.template.spec.containers)"


def _trainer_has(what: str) -> str:
    """CEL: the container that trains has `what`."""
    chosen = f"(c.name == '{names.CONTAINER}' || size(self.template.spec.containers) == 1)"
    return f"({_CONTAINERS} && self.template.spec.containers.exists(c, {chosen} && {what}))"


def _immutable(field: str) -> Rule:
    """CEL compares what the schema does not name (most of a template) as a whole, and misses a renamed key of an equally
    large object; the planner sees that too and makes the pods anew."""
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(
        cel=f"oldSelf.suspend || ({same})",
        message=f"{field} of a job that is not suspended can't change: set spec.suspend to true first, or make a new job",
        holds=None,
        field=field,
    )


def _mounts(spec: Spec) -> list[str]:
    containers = ((spec.template or {}).get("spec") or {}).get("containers") or []
    return [str(m.get("mountPath")).removesuffix("/") for c in containers for m in c.get("volumeMounts") or []]


class Spec(Model):
    """What to train, on how many pods, and how to recover. Only suspend, ttlSecondsAfterFinished, activeDeadlineSeconds,
    cleanPodPolicy and forceDeletePods of a job that is not suspended can change; everything can while it is suspended."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Number of pods. Ranks = replicas x processesPerPod."""
    processes_per_pod: int | None = Field(default=None, ge=1, le=64)
    """Ranks in each pod. Default: the container's nvidia.com/gpu or amd.com/gpu, or 1. Required with other accelerators."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Communication backend. auto: nccl if the container asks for nvidia.com/gpu or amd.com/gpu (there it is RCCL), else gloo.
    Not auto with other accelerators."""
    entrypoint: Entrypoint | None = None
    """What every rank runs. Instead of it the template's container may have a command of its own."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Container image with Python 3.9 or newer: short for the image of the template's container."""
    template: dict[str, Any] | None = None
    """PodTemplateSpec of the pods, kept as written. The container named `trainer`, or the only one, trains."""
    checkpoint: Checkpoint | None = None
    """How and where the trainer saves its state. Without it a restart begins at step 0."""
    restart: Restart = Restart()
    """How many failures of its own the job may have."""
    suspend: bool = False
    """true: no pods; checkpoints are kept. false again: goes on from the newest checkpoint."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=INT32_MAX)
    """Delete the job so many seconds after its end. Default: never."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=INT32_MAX)
    """The job fails if it is active (not suspended) for longer than so many seconds. Default: no limit."""
    clean_pod_policy: Literal["All", "None"] = "All"
    """What happens to the pods at the end. All: they go, and free what they hold. None: they stay and idle."""
    force_delete_pods: Literal["WhenFenced", "Always", "Never"] = "WhenFenced"
    """Whether a pod whose end its node does not confirm (a dead node) is removed 30 s after its grace period, so that it can
    be replaced. WhenFenced: if spec.checkpoint is set and replicas is 2 or more, since an old pod can then neither train on
    nor commit a checkpoint of the checkpoint library; what a script saves by itself is not fenced. Always: also without that;
    for scripts that write nothing, or that bear two writers. Never: left to Kubernetes, or to a person, as all of these pods
    are that are not removed: it removes them when their Node object is deleted or has the taint
    node.kubernetes.io/out-of-service."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"has(self.image) || {_trainer_has('has(c.image)')}",
            message="no image: set spec.image, or the image of the container that trains in spec.template",
            holds=lambda self: bool(self.image or self.trainer.get("image")),
            field="image",
        ),
        Rule(
            cel=f"!has(self.image) || !{_trainer_has('has(c.image)')}",
            message="set spec.image or the image of the template's container, not both",
            holds=lambda self: not (self.image and self.trainer.get("image")),
            field="image",
        ),
        Rule(
            cel=f"has(self.entrypoint) || {_trainer_has('has(c.command) && size(c.command) > 0')}",
            message="nothing to run: set entrypoint.module or entrypoint.script, or the command of the template's container",
            holds=lambda self: bool(self.entrypoint or self.trainer.get("command")),
            field="entrypoint",
        ),
        Rule(
            cel=f"!has(self.entrypoint) || !{_trainer_has('(has(c.command) || has(c.args))')}",
            message="set spec.entrypoint or command and args of the template's container, not both",
            holds=lambda self: not self.entrypoint or all(self.trainer.get(name) is None for name in ("command", "args")),
            field="entrypoint",
        ),
        Rule(
            cel=f"!has(self.checkpoint) || !({_CONTAINERS}) || self.template.spec.containers.all(c, !has(c.volumeMounts)"
            " || c.volumeMounts.all(m, m.mountPath != self.checkpoint.mountPath"
            " && m.mountPath + '/' != self.checkpoint.mountPath && m.mountPath != self.checkpoint.mountPath + '/'))",
            message="a container of the template mounts something at checkpoint.mountPath: remove one of the two",
            holds=lambda self: not self.checkpoint or self.checkpoint.mount_path.removesuffix("/") not in _mounts(self),
            field="checkpoint",
        ),
        *map(
            _immutable,
            ("replicas", "processesPerPod", "backend", "entrypoint", "image", "template", "checkpoint", "restart"),
        ),
    )

    @property
    def trainer(self) -> dict[str, Any]:
        """The raw container of the template that trains; {} if the template names none."""
        return find_trainer_container(self.template or {})

    @property
    def gpus(self) -> int:
        """nvidia.com/gpu or amd.com/gpu of the container that trains."""
        for resources in self._resources():
            for gpu in GPUS:
                if re.fullmatch("[0-9]{1,9}", amount := str(resources.get(gpu))):
                    return int(amount)
        return 0

    @property
    def undecided_accelerator(self) -> str | None:
        """An accelerator of the container that trains whose ranks and backend nobody has decided; None if there is none."""
        if self.processes_per_pod and self.backend != "auto":
            return None
        asked = (name for resources in self._resources() for name, amount in resources.items() if str(amount) != "0")
        return next((name for name in asked if name not in GPUS and OTHER_ACCELERATORS.fullmatch(name)), None)

    def _resources(self) -> list[dict[str, Any]]:
        """Limits and requests of the container that trains."""
        resources = self.trainer.get("resources")
        found = [resources.get(kind) for kind in ("limits", "requests")] if isinstance(resources, dict) else []
        return [each for each in found if isinstance(each, dict)]

    @property
    def processes(self) -> int:
        """Ranks in each pod, default applied."""
        return self.processes_per_pod or self.gpus or 1

    @property
    def resolved_backend(self) -> Literal["nccl", "gloo"]:
        """backend, with auto decided."""
        if self.backend == "auto":
            return "nccl" if self.gpus else "gloo"
        return self.backend

    @property
    def command(self) -> list[str]:
        """What the agent starts for every rank."""
        if self.entrypoint is None:
            return [*(self.trainer.get("command") or ()), *(self.trainer.get("args") or ())]
        what = ["-m", self.entrypoint.module] if self.entrypoint.module else [self.entrypoint.script or ""]
        return ["python3", "-u", *what, *self.entrypoint.args]


_IS_END = f"c.type in {[names.COMPLETE, names.FAILED]} && c.status == 'True'"
_WAS_ENDED = f"(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, {_IS_END}))"
"""CEL, at the root and not at `status`, where a rule would not see that the whole status is removed."""


class ObjectMeta(OpenModel):
    """metadata of the object, as far as our rules look at it."""

    name: str


class DistributedTrainingJob(Model):
    """A distributed PyTorch training that survives the loss of its processes, pods and nodes."""

    api_version: Literal["training.dtj.dev/v1alpha1"]
    kind: Literal["DistributedTrainingJob"]
    metadata: ObjectMeta
    spec: Spec
    status: Status | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"size(self.metadata.name) <= {NAME_LENGTH}",
            message=f"metadata.name must have at most {NAME_LENGTH} characters: pods and labels are named after it",
            holds=lambda self: len(self.metadata.name) <= NAME_LENGTH,
        ),
        Rule(
            cel=f"self.metadata.name.matches('{NAME_PATTERN}')",
            message="metadata.name must begin with a lower-case letter and have only a-z, 0-9, '-': a Service is named after it",
            holds=lambda self: re.fullmatch(NAME_PATTERN, self.metadata.name) is not None,
        ),
        Rule(
            cel=f"!{_WAS_ENDED} || (has(self.status) && has(self.status.conditions)"
            f" && self.status.conditions.filter(c, {_IS_END}).size() == 1"
            f" && self.status.conditions.exists(c, {_IS_END} && oldSelf.status.conditions.exists(o, o.type == c.type"
            " && o.status == 'True')))",
            message="a job that is Complete or Failed stays so: make a new job to train again",
            holds=None,
            field="status",
        ),
        Rule(
            cel=f"!{_WAS_ENDED} || !has(oldSelf.status.completionTime)"
            " || (has(self.status) && has(self.status.completionTime)"
            " && self.status.completionTime == oldSelf.status.completionTime)",
            message="completionTime of a job that is Complete or Failed can't change",
            holds=None,
            field="status",
        ),
    )
