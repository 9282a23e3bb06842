"""The fate of each field of a job on Slurm. Pure."""

from __future__ import annotations

from typing import Any

from dtj.convert.fields import Draft, Field, carry
from dtj.errors import InputError
from dtj_core.api import DistributedTrainingJob
from dtj_core.api.accelerators import GPUS
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object

_SAME, _OTHER, _NOT, _NEEDLESS, _REFUSED = How.SAME, How.OTHER, How.NOT_CARRIED, How.NOT_NEEDED, How.REFUSED
_FOLDER = "a folder of that name in VOLUMES of the script"
_MOUNT = "nothing mounts it on Slurm's nodes: write hostPath with the folder at which they have it"
_FILES = "only a cluster has it: put the files into a folder that all nodes share, and write hostPath with it"
_ADMIN = "this is the business of sbatch: give it --partition, --account, --qos or --constraint"
_NODES = "the nodes' own: Slurm starts no kubelet"
_IMAGE = "not pulled: the ranks run in PYTHON of the script, or in the container of DTJ_SLURM_CONTAINER"

SPEC = (
    Field("runtimeRef.**", _SAME, "the runtime's fields are in the script"),
    Field("replicas", _OTHER, "--nodes"),
    Field("spares", _OTHER, "--nodes, beyond the replicas"),
    Field("elastic.minReplicas", _OTHER, "--nodes MIN-MAX"),
    Field("elastic.maxReplicas", _NOT, "an allocation does not grow"),
    Field("elastic.**", _SAME, ""),
    *(Field(name, _SAME, "") for name in ("processesPerPod", "processesFrom", "backend", "warmWorkers", "preload")),
    *(Field(name, _SAME, "") for name in ("engine", "progressDeadlineSeconds", "successPolicy", "kubeflowProgress")),
    *(Field(f"{name}.**", _SAME, "") for name in ("entrypoint", "restart", "hangDetection", "env[]")),
    Field("image", _OTHER, _IMAGE),
    Field("envFrom[].**", _NOT, "export these variables before you call sbatch"),
    Field("resources.**", _SAME, ""),
    Field("nodeSelector.**", _NOT, _ADMIN),
    Field("tolerations[].**", _NOT, _ADMIN),
    Field("priorityClassName", _NOT, _ADMIN),
    Field("queueName", _NOT, _ADMIN),
    Field("imagePullSecrets[].**", _NOT, "credentials of an image are those of apptainer or enroot"),
    Field("shmSize", _NOT, "/dev/shm is the node's own"),
    Field("network.interface", _SAME, ""),
    Field("network.**", _NEEDLESS, "the pods have the nodes' own network"),
    Field("checkpoint.volume.claimName", _OTHER, _FOLDER),
    Field("checkpoint.volume.claimTemplate.**", _OTHER, "a folder of the claim's name in VOLUMES of the script"),
    Field("checkpoint.volume.hostPath.**", _SAME, ""),
    Field("checkpoint.volume.source.**", _REFUSED, _MOUNT),
    Field("checkpoint.**", _SAME, ""),
    Field("gang.**", _NEEDLESS, "Slurm allocates all nodes at once"),
    Field("halfPlacedSeconds", _NEEDLESS, "Slurm allocates all nodes at once"),
    Field("managedBy", _NEEDLESS, "no operator runs the job"),
    Field("suspend", _OTHER, "--hold: scontrol release starts the job"),
    Field("activeDeadlineSeconds", _OTHER, "--time: a job that is requeued has all of it again"),
    Field("startupDeadlineSeconds", _NOT, "sbatch --deadline ends a job that waits for too long"),
    Field("ttlSecondsAfterFinished", _NEEDLESS, "Slurm forgets ended jobs by itself"),
    Field("cleanPodPolicy", _NEEDLESS, "the nodes are free when the job ends"),
    Field("forceDeletePods", _NEEDLESS, "Slurm decides when a node is lost"),
)

POD = (
    Field("volumes[].name", _SAME, ""),
    Field("volumes[].persistentVolumeClaim.claimName", _OTHER, _FOLDER),
    Field("volumes[].persistentVolumeClaim.**", _SAME, ""),
    Field("volumes[].hostPath.**", _SAME, ""),
    Field("volumes[].emptyDir.**", _OTHER, "a folder of the node that ends with the pod"),
    Field("volumes[].ephemeral.**", _OTHER, "a folder of the node that ends with the pod"),
    *(Field(f"volumes[].{kind}.**", _REFUSED, _FILES) for kind in ("configMap", "secret", "projected", "downwardAPI")),
    Field("volumes[].**", _REFUSED, _MOUNT),
    Field("terminationGracePeriodSeconds", _SAME, ""),
    *(Field(f"{name}.**", _NOT, _ADMIN) for name in ("nodeSelector", "affinity", "tolerations[]")),
    Field("topologySpreadConstraints[].**", _NEEDLESS, "each pod has a node of its own"),
    *(Field(name, _NOT, _ADMIN) for name in ("priorityClassName", "schedulerName", "nodeName")),
    Field("initContainers[].**", _NOT, "write its command into the script, above srun"),
    *(Field(name, _NEEDLESS, _NODES) for name in ("hostNetwork", "hostIPC", "hostPID", "dnsPolicy")),
    *(Field(name, _NEEDLESS, _NODES) for name in ("enableServiceLinks", "automountServiceAccountToken")),
    *(Field(name, _NOT, _NODES) for name in ("serviceAccountName", "runtimeClassName", "hostname")),
    Field("imagePullSecrets[].**", _NOT, "credentials of an image are those of apptainer or enroot"),
    Field("securityContext.**", _NOT, "all processes run as the user of the job"),
    Field("restartPolicy", _NEEDLESS, "an agent that crashes is started again"),
)  # fmt: skip

CONTAINER = (
    Field("name", _SAME, ""),
    Field("image", _OTHER, _IMAGE),
    Field("imagePullPolicy", _NEEDLESS, _IMAGE),
    *(Field(name, _SAME, "") for name in ("command", "args")),
    Field("env[].name", _SAME, ""),
    Field("env[].value", _SAME, ""),
    Field("env[].valueFrom.fieldRef.**", _SAME, ""),
    Field("env[].valueFrom.secretKeyRef.**", _NOT, "export the variable before you call sbatch"),
    Field("env[].valueFrom.configMapKeyRef.**", _NOT, "export the variable before you call sbatch"),
    Field("env[].valueFrom.**", _REFUSED, "only a cluster has it: write a value"),
    Field("envFrom[].**", _NOT, "export these variables before you call sbatch"),
    Field("resources.**", _SAME, ""),
    Field("volumeMounts[].**", _SAME, ""),
    Field("workingDir", _NOT, "the ranks start where you call sbatch: give it --chdir"),
    Field("ports[].**", _NEEDLESS, "the pods have the nodes' own network"),
    Field("securityContext.**", _NOT, "all processes run as the user of the job"),
    *(Field(f"{name}.**", _NOT, _NODES) for name in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")),
    *(Field(name, _NEEDLESS, _NODES) for name in ("terminationMessagePath", "terminationMessagePolicy", "tty")),
)  # fmt: skip


def notes(job: Object, model: DistributedTrainingJob, path: str) -> Draft:
    """Returns a note for each field that Slurm takes in another form or not at all.

    Raises InputError with each field for which there is no remedy but another one.
    """
    draft = Draft()
    spec = {key: value for key, value in job["spec"].items() if key not in ("template", "env")}
    carry(SPEC, spec, draft, "spec.")
    carry(CONTAINER, {"env": job["spec"].get("env")}, draft, "spec.")
    pod = dict((job["spec"].get("template") or {}).get("spec") or {})
    at = "spec.template.spec."
    for number, each in enumerate(pod.pop("containers", None) or ()):
        place = f"{at}containers[{number}]"
        if each.get("name") == model.spec.trainer.get("name"):
            carry(CONTAINER, each, draft, f"{place}.")
        else:
            draft.note(_NOT, place, "only the container of the training is started", each.get("name", ""))
    carry(POD, pod, draft, at)
    _resources(model, draft)
    refused = [note for note in draft.notes if note.how is _REFUSED]
    if refused:
        raise InputError("\n".join(f"{path}: {note.path}: {note.text}" for note in refused))
    # Most jobs have these two, and the script shows them.
    draft.notes = [note for note in draft.notes if note.path not in ("spec.replicas", "spec.elastic.minReplicas")]
    return draft


def _resources(model: DistributedTrainingJob, draft: Draft) -> None:
    given: Any = model.spec.trainer.get("resources") or {}
    for name, amount in {**(given.get("requests") or {}), **(given.get("limits") or {})}.items():
        if name not in ("cpu", "memory", *GPUS):
            draft.note(_NOT, f"resource {name}", "give it to sbatch, such as --gres or --tmp", str(amount))
