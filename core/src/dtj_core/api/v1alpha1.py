"""`training.dtj.dev/v1alpha1` DistributedTrainingJob: fields, defaults, bounds and rules.

`make generate` writes the CRD.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from dtj_contract import names
from dtj_core.api import accelerators, launcher, launcher_place, shorthands
from dtj_core.api.base_model import INT32_MAX, Model, OpenModel, Rule
from dtj_core.api.checkpoint import Checkpoint
from dtj_core.api.elastic import Elastic
from dtj_core.api.entrypoint import Entrypoint, ModuleName
from dtj_core.api.gang import Gang
from dtj_core.api.hang import HangDetection
from dtj_core.api.network import Network
from dtj_core.api.pod_types import EnvVar, Label, Labels, LocalReference, Objects, Resources, Toleration
from dtj_core.api.restart import RestartSettings
from dtj_core.api.runtime_ref import RuntimeRef
from dtj_core.api.shorthands import trainer_has
from dtj_core.api.status import Status
from dtj_core.api.template import find_trainer_container
from dtj_core.api.update_rules import REPLICAS, fixed, immutable

__all__ = ["DistributedTrainingJob", "Spec", "find_trainer_container"]

# The label controller-revision-hash of pods has the StatefulSet's name and a hash of 10, in at most 63 characters.
NAME_LENGTH = 52
# Pattern of a Service name, the strictest one of the children.
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MOUNT_PATH = f"(has(self.checkpoint.mountPath) ? self.checkpoint.mountPath : '{names.DEFAULT_CHECKPOINT_DIR}')"
_MOUNTS_CHECKPOINTS = (
    f"has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath == {MOUNT_PATH}"
    f" || m.mountPath + '/' == {MOUNT_PATH} || m.mountPath == {MOUNT_PATH} + '/')"
)
HAS_IMAGE = "has(c.image) && c.image != ''"
_QUEUE = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
# As spec.managedBy of a Kubernetes Job.
_CONTROLLER = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._~-]+$"


class Spec(Model):
    """The training, its pods, and how it recovers.

    Every field can change while the job is suspended; otherwise only suspend,
    ttlSecondsAfterFinished, activeDeadlineSeconds, startupDeadlineSeconds, halfPlacedSeconds,
    cleanPodPolicy, forceDeletePods, replicas of an elastic job, checkpoint.keep, and in restart the budget
    (maxRestarts, windowSeconds, maxRestartsWithoutProgress) and avoidNodes can.
    """

    runtime_ref: RuntimeRef | None = None
    """DistributedTrainingRuntime that gives the job what it leaves out: the image, a template, a
    checkpoint volume, restart rules and more. The job's own fields win. The job waits while there is
    no such runtime."""
    replicas: int = Field(default=1, ge=1, le=1024)
    """Number of pods. Ranks = replicas x processesPerPod. kubectl scale changes the number while an
    elastic job runs."""
    spares: int = Field(default=0, ge=0, le=64)
    """Number of pods beyond replicas that are kept warm and idle, away from the other pods where
    there is room. A spare takes the ranks of a lost pod at once, and the pod that comes back is the
    new spare."""
    elastic: Elastic | None = None
    """Lets the group continue with fewer pods when a pod can't come back, and take in more. Default:
    the group always has `replicas` pods."""
    processes_per_pod: int | None = Field(default=None, ge=1, le=64)
    """Ranks in each pod. Default: one for each nvidia.com/gpu, amd.com/gpu, habana.ai/gaudi,
    gpu.intel.com/i915, gpu.intel.com/xe or MIG slice (nvidia.com/mig-*) of the trainer container, else
    1. Other accelerators, or slices of two sizes, need this field or processesFrom."""
    processes_from: Annotated[str, StringConstraints(max_length=317, pattern=accelerators.RESOURCE_NAME)] | None = None
    """Resource that sets the ranks in each pod: one for each unit that the trainer container requests,
    for instance `aws.amazon.com/neuroncore`. Instead of processesPerPod."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Communication backend. auto: nccl if the container requests nvidia.com/gpu or amd.com/gpu
    (nccl is RCCL there), else gloo. With other accelerators, auto is not allowed: scripts that use the
    training library choose here, all others choose their own."""
    engine: Literal["torch", "deepspeed", "horovod", "jax", "ray", "tensorflow"] = "torch"
    """Framework whose variables the ranks get (docs/engines.md). torch: those of torchrun. deepspeed: the
    same, and those of its launcher. horovod: the same, and those of horovodrun with gloo. jax: those of
    jax.distributed.initialize. tensorflow: TF_CONFIG. ray: a Ray node in each pod, and the command once."""
    entrypoint: Entrypoint | None = None
    """Script or module that every rank runs. Alternatively, set the command of the template's
    container."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Container image with Python 3.9 or newer. Short for the image of the template's container."""
    env: list[EnvVar] | None = Field(default=None, max_length=256)
    """Environment variables of the script. Short for env of the template's container."""
    env_from: Objects | None = None
    """ConfigMaps and Secrets whose keys become environment variables. Short for envFrom of the
    template's container."""
    resources: Resources | None = None
    """Requests and limits, such as `limits: {nvidia.com/gpu: 8}`. Short for resources of the template's
    container."""
    node_selector: Labels | None = Field(default=None, max_length=64)
    """Labels that a node must have. Short for template.spec.nodeSelector."""
    tolerations: list[Toleration] | None = Field(default=None, max_length=256)
    """Taints of nodes that the pods tolerate. Short for template.spec.tolerations."""
    priority_class_name: Label | None = None
    """PriorityClass of the pods. Short for template.spec.priorityClassName."""
    image_pull_secrets: list[LocalReference] | None = Field(default=None, max_length=64)
    """Secrets for the registries of all images of the pods, the agent's init container included. Short
    for template.spec.imagePullSecrets."""
    shm_size: (
        Annotated[str, StringConstraints(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?([kMGT]|[KMGT]i)?$")] | None
    ) = None
    """Largest size of /dev/shm, such as `16Gi`. Files there are memory, and count against the container's
    memory limit. Default: half of the node's memory, or the container's limit if that is less."""
    network: Network | None = None
    """Network that the ranks use, for nodes with several interfaces or with RDMA."""
    template: dict[str, Any] | None = None
    """PodTemplateSpec of the pods, kept as written. The trainer container is the one named
    `trainer`, or the only one. A shorthand of the spec (image, env, envFrom, resources, nodeSelector,
    tolerations, priorityClassName, imagePullSecrets, network) is added to it; set either the
    shorthand or the field."""
    checkpoint: Checkpoint | None = None
    """Location and frequency of checkpoints. Without checkpoints, a restart begins at step 0, unless
    memory snapshots of the training library have survived.
    """
    warm_workers: Literal["Auto", "Never"] = "Auto"
    """Whether workers are forked from a warm process: one per pod, which has imported torch, or with
    engine jax what the first attempt has imported, so that a restart does not import it again. Auto:
    where the command is `python3 SCRIPT` or `python3 -m MODULE`; other workers are started plainly,
    and the log gives the reason. Never: workers are always started plainly."""
    preload: list[ModuleName] = Field(default=[], max_length=64)
    """Third-party modules that the warm process imports beside torch, such as lightning. List what
    your script imports and what does not change with your code: a module that starts a thread, uses
    the GPU, draws random numbers or fails when it is imported is left out."""
    kubeflow_progress: Literal["Auto", "Never"] = "Auto"
    """Whether the agents take the progress that Kubeflow's clients send, such as transformers' Trainer
    and kubeflow.trainer.update_trainjob_status. Never: they find no server, and send nothing."""
    restart: RestartSettings = RestartSettings()
    """Budget for failures of the job's own. Preempted, drained and deleted pods never count."""
    hang_detection: HangDetection = HangDetection()
    """Detection of a group that has made steps and makes no more, or of a rank that is stopped by a
    signal."""
    progress_deadline_seconds: int | None = Field(default=None, ge=10, le=2592000)
    """Seconds without any sign of life after which a group hangs, whatever the script announced: no
    step, and no rank that uses processor time, network or disk. Set it for a script whose steps are
    unknown. Default: no limit."""
    success_policy: Literal["AllRanks", "Rank0"] = "AllRanks"
    """Ranks whose success completes the job. AllRanks: the workers of all ranks exit with 0. Rank0: that
    of rank 0 does, as in Kubeflow's Training Operator; the other ranks then get SIGTERM, and
    restart.stopGraceSeconds later SIGKILL, and how they end is no failure. A rank that fails before
    restarts the group with either."""
    queue_name: Annotated[str, StringConstraints(max_length=63, pattern=_QUEUE)] | None = None
    """LocalQueue of Kueue that admits the pods, all at once. With kueue.enabled of the chart, the job gets
    a Workload: its quota outlives lost pods, and an eviction stops it with a checkpoint; the clocks of
    deadlines stand still while it is queued. Otherwise the StatefulSet gets Kueue's label, so Kueue's
    integration for StatefulSets must be enabled."""
    gang: Gang | None = None
    """PodGroup of a gang scheduler, which places all pods of the job or none. Default: none."""
    managed_by: Annotated[str, StringConstraints(max_length=63, pattern=_CONTROLLER)] | None = None
    """Controller that runs the job, such as `kueue.x-k8s.io/multikueue`. The operator leaves a job with
    another value than `training.dtj.dev/dtj-operator` alone: it creates nothing and writes no status.
    Can't change. Default: training.dtj.dev/dtj-operator."""
    suspend: bool = False
    """Whether the job is paused. true: the pods are deleted, checkpoints are kept. false: the job
    resumes from the newest checkpoint."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=INT32_MAX)
    """Seconds after the job has finished until it is deleted. Default: never."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=INT32_MAX)
    """Seconds that the job may be active before it fails, counted from 0 after each suspension. Default: no limit."""
    startup_deadline_seconds: int | None = Field(default=None, ge=1, le=INT32_MAX)
    """Seconds after the job was started or resumed within which the ranks of all pods must be
    started, or the job fails; the message names what it waited for. Restarts later on don't count.
    A job whose pods were created more than 30 s after their StatefulSet is not judged. Default: no
    limit."""
    half_placed_seconds: int | None = Field(default=None, ge=10, le=86400)
    """Seconds, and up to twice as many, after which pods that hold a node give it back because other pods
    of the job find none, so that of two jobs which wait for each other's nodes one can start. The job
    tries again after a pause that doubles each time. Default: never; a queue or a gang scheduler
    prevents the state."""
    clean_pod_policy: Literal["All", "None"] = "All"
    """Policy for the pods of a finished job. All: they are deleted and free their
    resources. None: they stay, idle."""
    force_delete_pods: Literal["WhenFenced", "Always", "Never"] = "WhenFenced"
    """Whether a pod whose node does not confirm its termination (a dead node) is force-deleted 30 s
    after its grace period, so that it can be replaced. WhenFenced: only if spec.checkpoint is set
    and replicas (of an elastic job: minReplicas) is 2 or more, because then the old pod can't
    continue to train, and can't commit a checkpoint of the checkpoint library; files that a script
    saves by itself are not fenced.
    Always: even if the pod is not fenced, for scripts that write nothing or that tolerate two
    writers. Never: the operator force-deletes no pod. Kubernetes removes a pod that is not force-deleted once its
    Node object is deleted or has the taint node.kubernetes.io/out-of-service."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"has(self.runtimeRef) || has(self.image) || {trainer_has(HAS_IMAGE)}",
            message="no image: set spec.image, or the image of the trainer container in spec.template, or"
            " spec.runtimeRef",
            holds=lambda self: bool(self.runtime_ref or self.image or self.trainer.get("image")),
            field="image",
        ),
        Rule(
            cel=f"!has(self.image) || !{trainer_has(HAS_IMAGE)}",
            message="set spec.image or the image of the template's container, not both",
            holds=lambda self: not (self.image and self.trainer.get("image")),
            field="image",
        ),
        Rule(
            cel="has(self.runtimeRef) || has(self.entrypoint)"
            f" || {trainer_has('has(c.command) && size(c.command) > 0')}",
            message="nothing to run: set entrypoint.module or entrypoint.script, or the command of the template's "
            "container",
            holds=lambda self: bool(self.runtime_ref or self.entrypoint or self.trainer.get("command")),
            field="entrypoint",
        ),
        Rule(
            cel=f"!has(self.entrypoint) || !{trainer_has('(has(c.command) || has(c.args))')}",
            message="set spec.entrypoint or command and args of the template's container, not both",
            holds=lambda self: (
                not self.entrypoint or all(self.trainer.get(name) is None for name in ("command", "args"))
            ),
            field="entrypoint",
        ),
        Rule(
            cel="!has(self.checkpoint) || has(self.checkpoint.volume) || has(self.runtimeRef)",
            message="no volume for the checkpoints: set checkpoint.volume, or spec.runtimeRef",
            holds=lambda self: not self.checkpoint or bool(self.checkpoint.volume or self.runtime_ref),
            field="checkpoint.volume",
        ),
        Rule(
            cel=f"!has(self.checkpoint) || !{trainer_has(_MOUNTS_CHECKPOINTS)}",
            message="the template's container already mounts a volume at checkpoint.mountPath: remove that mount, or"
            " change mountPath",
            holds=lambda self: (
                not self.checkpoint or self.checkpoint.mount_path.removesuffix("/") not in shorthands.mount_paths(self)
            ),
            field="checkpoint",
        ),
        Rule(
            cel="!has(self.checkpoint) || !has(self.checkpoint.volume) || !has(self.checkpoint.volume.claimTemplate)"
            " || !('ReadWriteOncePod' in self.checkpoint.volume.claimTemplate.accessModes)"
            " || self.replicas + self.spares <= 1",
            message="several pods can't mount a ReadWriteOncePod claim: write ReadWriteMany in"
            " checkpoint.volume.claimTemplate.accessModes",
            holds=lambda self: (
                self.checkpoint is None
                or self.checkpoint.volume is None
                or self.checkpoint.volume.claim_template is None
                or "ReadWriteOncePod" not in self.checkpoint.volume.claim_template.access_modes
                or self.replicas + self.spares <= 1
            ),
            field="checkpoint",
        ),
        immutable(
            "spares",
            "elastic",
            "runtimeRef",
            "processesPerPod",
            "processesFrom",
            "entrypoint",
            "image",
            *shorthands.FIELDS,
            "queueName",
            "gang",
            "template",
            "warmWorkers",
            "preload",
            "kubeflowProgress",
            "hangDetection",
            "progressDeadlineSeconds",
            "successPolicy",
        ),
        *REPLICAS,
        *shorthands.RULES,
        fixed("managedBy"),
    )

    @property
    def merged_template(self) -> dict[str, Any]:
        """The raw pod template with the shorthands in it, except for the image."""
        return shorthands.merge(self)

    @cached_property
    def trainer(self) -> dict[str, Any]:
        """The raw trainer container with the shorthands in it; {} if neither names anything."""
        return find_trainer_container(self.merged_template)

    @property
    def is_managed_elsewhere(self) -> bool:
        """Whether another controller than the operator runs the job."""
        return self.managed_by not in (None, names.CONTROLLER)

    @property
    def gpus(self) -> int:
        """Number of nvidia.com/gpu or amd.com/gpu of the trainer container."""
        return accelerators.count_gpus(self.trainer)

    @property
    def undecided_accelerator(self) -> str | None:
        """Accelerator whose use the job must decide; None if there is none.

        The spec leaves the number of ranks or the backend open for it.
        """
        return accelerators.find_undecided(self.trainer, self.processes_per_pod, self.processes_from, self.backend)

    @property
    def accelerator_question(self) -> str | None:
        """Question about accelerators that the job must answer, and how; None if nothing is open."""
        return accelerators.describe_undecided(self.trainer, self.processes_per_pod, self.processes_from, self.backend)

    @property
    def processes(self) -> int:
        """Ranks in each pod, with the default applied."""
        asked = self.launch.processes if self.launch is not None else None
        return self.processes_per_pod or asked or accelerators.count_ranks(self.trainer, self.processes_from) or 1

    @property
    def resolved_backend(self) -> Literal["nccl", "gloo"]:
        """Backend, with auto resolved."""
        return ("nccl" if self.gpus else "gloo") if self.backend == "auto" else self.backend

    @cached_property
    def launch(self) -> launcher.Unwrapped | None:
        """Command of a rank without the launcher that the job names; None if there is none to take out."""
        return launcher.unwrap(self.written_command, None if self.elastic is not None else self.replicas)

    @property
    def resolved_engine(self) -> str:
        """Engine; that of a launcher in the command takes the place of the default."""
        asked = self.launch.engine if self.launch is not None else ""
        return asked if asked and self.engine == names.DEFAULT_ENGINE else self.engine

    @property
    def command(self) -> list[str]:
        """Command that the agent starts for every rank."""
        if self.launch is not None:
            return self.launch.command
        return launcher_place.placed(self.written_command, None if self.elastic is not None else self.replicas)

    @property
    def written_command(self) -> list[str]:
        """Command as the job names it, perhaps with a launcher in front."""
        if self.entrypoint is None:
            return [*(self.trainer.get("command") or ()), *(self.trainer.get("args") or ())]
        what = ["-m", self.entrypoint.module] if self.entrypoint.module else [self.entrypoint.script or ""]
        return ["python3", "-u", *what, *self.entrypoint.args]


_IS_END = f"c.type in {[names.COMPLETE, names.FAILED]} && c.status == 'True'"
_WAS_ENDED = (
    f"(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, {_IS_END}))"
)
"""CEL for the root: a rule at `status` would not notice that the whole status is removed."""


class ObjectMeta(OpenModel):
    """Fields of metadata that our rules check."""

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
            message=f"metadata.name must have at most {NAME_LENGTH} characters, because pods and labels are named "
            "after it",
            holds=lambda self: len(self.metadata.name) <= NAME_LENGTH,
        ),
        Rule(
            cel=f"self.metadata.name.matches('{NAME_PATTERN}')",
            message="metadata.name must begin with a lower-case letter and contain only a-z, 0-9 and '-',"
            " because a Service is named after it",
            holds=lambda self: re.fullmatch(NAME_PATTERN, self.metadata.name) is not None,
        ),
        Rule(
            cel=f"!{_WAS_ENDED} || (has(self.status) && has(self.status.conditions)"
            f" && self.status.conditions.filter(c, {_IS_END}).size() == 1"
            f" && self.status.conditions.exists(c, {_IS_END} && oldSelf.status.conditions.exists(o, o.type == c.type"
            " && o.status == 'True')))",
            message="a job that is Complete or Failed stays so: create a new job to train again",
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
