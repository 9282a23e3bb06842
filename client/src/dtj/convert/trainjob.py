"""Converts a TrainJob with its runtime (trainer.kubeflow.org/v1alpha1) of Kubeflow Trainer. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from dtj.convert import meta, pods
from dtj.convert.fields import GANG, MANAGED_BY, Draft, Field, as_object, carry, whole
from dtj.convert.program import Size, ranks_of_node, settle
from dtj.errors import InputError
from dtj_core.api.launcher_flags import RESTARTS_TEXT, How
from dtj_core.plan.model import Object

KIND = "TrainJob"
RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
API_VERSIONS = ("trainer.kubeflow.org/v1alpha1",)
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
JOBS = "spec.template.spec.replicatedJobs"
TRAINERS = ("node", "trainer", "trainer-node")
"""Names of the replicated job and of the container that train, in the versions of Kubeflow Trainer."""
OVERRIDES = ("podTemplateOverrides", "podSpecOverrides")
_INITIALIZER = "download in the script, or in spec.template.spec.initContainers to a volume; each pod has its own"
_MERGED = "joined with the runtime's pod template in spec.template"
_JOBSET = "one StatefulSet runs all pods, and spec.restart is the policy for its failures"
_RUNTIME_OWN = "it belongs to the runtime, which the job no longer needs"

FIELDS = (
    *meta.METADATA,
    *(
        Field(f"spec.runtimeRef.{name}", How.NOT_NEEDED, "the runtime's template is in the job itself")
        for name in ("name", "kind", "apiGroup")
    ),
    Field("spec.initializer.dataset.**", How.NOT_CARRIED, _INITIALIZER),
    Field("spec.initializer.model.**", How.NOT_CARRIED, _INITIALIZER),
    Field("spec.trainer.image", How.SAME, "spec.image"),
    Field("spec.trainer.command", How.SAME, "spec.entrypoint or the command of the container"),
    Field("spec.trainer.args", How.SAME, "spec.entrypoint.args or the command of the container"),
    Field("spec.trainer.env.**", How.SAME, "env of the container, over the runtime's"),
    Field("spec.trainer.numNodes", How.OTHER, "spec.replicas"),
    Field(
        "spec.trainer.numProcPerNode",
        How.OTHER,
        "spec.processesPerPod; auto and gpu are its default, one rank for each GPU",
    ),
    Field("spec.trainer.resourcesPerNode.**", How.SAME, "resources of the container"),
    Field("spec.podTemplateOverrides[].targetJobs.**", How.NOT_NEEDED, "one template has all pods"),
    Field("spec.podTemplateOverrides[].manager", How.NOT_NEEDED, "the job has one author"),
    Field("spec.podTemplateOverrides[].**", How.OTHER, _MERGED),
    Field("spec.podSpecOverrides[].targetJobs.**", How.NOT_NEEDED, "one template has all pods"),
    Field("spec.podSpecOverrides[].**", How.OTHER, _MERGED),
    Field("spec.runtimePatches[].manager", How.NOT_NEEDED, "the job has one author"),
    Field("spec.runtimePatches[].time", How.NOT_NEEDED, "the job has one author"),
    Field(
        "spec.runtimePatches[].trainingRuntimeSpec.template.metadata.**",
        How.OTHER,
        "spec.template.metadata: there is no JobSet, so the pods get them",
    ),
    Field("spec.runtimePatches[].trainingRuntimeSpec.**", How.OTHER, _MERGED),
    Field("spec.labels.**", How.OTHER, "spec.template.metadata.labels: there is no JobSet, so the pods get them"),
    Field(
        "spec.annotations.**", How.OTHER, "spec.template.metadata.annotations: there is no JobSet, so the pods get them"
    ),
    Field("spec.suspend", How.SAME, "spec.suspend", "spec.suspend"),
    Field("spec.activeDeadlineSeconds", How.SAME, "spec.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
    Field("spec.ttlSecondsAfterFinished", How.SAME, "spec.ttlSecondsAfterFinished", "spec.ttlSecondsAfterFinished"),
    Field(
        "spec.managedBy",
        How.NOT_CARRIED,
        MANAGED_BY,
    ),
)

RUNTIME_FIELDS = (
    Field("apiVersion", How.SAME, "training.dtj.dev/v1alpha1"),
    Field("kind", How.SAME, "DistributedTrainingJob"),
    Field("metadata.**", How.NOT_NEEDED, _RUNTIME_OWN),
    Field("status.**", How.NOT_NEEDED, _RUNTIME_OWN),
    Field("spec.mlPolicy.numNodes", How.OTHER, "spec.replicas, unless spec.trainer.numNodes of the TrainJob is set"),
    Field(
        "spec.mlPolicy.torch.numProcPerNode",
        How.OTHER,
        "spec.processesPerPod; auto and gpu are its default, one rank for each GPU",
    ),
    Field(
        "spec.mlPolicy.torch.elasticPolicy.minNodes", How.OTHER, "spec.elastic.minReplicas", "spec.elastic.minReplicas"
    ),
    Field(
        "spec.mlPolicy.torch.elasticPolicy.maxNodes", How.OTHER, "spec.elastic.maxReplicas", "spec.elastic.maxReplicas"
    ),
    Field(
        "spec.mlPolicy.torch.elasticPolicy.maxRestarts",
        How.OTHER,
        RESTARTS_TEXT,
        "spec.restart.maxRestarts",
    ),
    Field(
        "spec.mlPolicy.torch.elasticPolicy.metrics.**",
        How.NOT_CARRIED,
        "create a HorizontalPodAutoscaler whose scaleTargetRef is the job: it has the scale subresource",
    ),
    Field("spec.mlPolicy.torch.envInjection.**", How.NOT_NEEDED, "the agent sets the variables for each rank"),
    *(
        Field(
            f"spec.mlPolicy.{name}.**",
            How.REFUSED,
            "this policy starts its processes by other means than torch.distributed",
        )
        for name in ("mpi", "flux", "jax", "xgboost")
    ),
    Field(
        "spec.podGroupPolicy.coscheduling.scheduleTimeoutSeconds",
        How.OTHER,
        "spec.startupDeadlineSeconds, within which all ranks must be started",
        "spec.startupDeadlineSeconds",
        lambda value: value or None,
    ),
    Field("spec.podGroupPolicy.**", How.NOT_CARRIED, GANG),
    Field(f"{JOBS}[].name", How.NOT_NEEDED, "all pods are the same"),
    Field(f"{JOBS}[].replicas", How.NOT_NEEDED, "spec.replicas counts the pods"),
    Field(f"{JOBS}[].groupName", How.NOT_NEEDED, "all pods are the same"),
    Field(
        f"{JOBS}[].dependsOn.**",
        How.NOT_CARRIED,
        "pods start at once: wait in spec.template.spec.initContainers for what has to be there",
    ),
    Field(f"{JOBS}[].template.metadata.**", How.NOT_NEEDED, "there is no Job between the training and its pods"),
    Field(f"{JOBS}[].template.spec.template.**", How.SAME, "spec.template, spec.image and spec.entrypoint: see below"),
    Field(
        f"{JOBS}[].template.spec.activeDeadlineSeconds",
        How.SAME,
        "spec.activeDeadlineSeconds, unless the TrainJob has its own",
    ),
    Field(f"{JOBS}[].template.spec.**", How.NOT_CARRIED, _JOBSET),
    Field(
        "spec.template.metadata.labels.**",
        How.OTHER,
        "spec.template.metadata.labels: there is no JobSet, so the pods get them",
    ),
    Field(
        "spec.template.metadata.annotations.**",
        How.OTHER,
        "spec.template.metadata.annotations: there is no JobSet, so the pods get them",
    ),
    Field(
        "spec.template.spec.failurePolicy.maxRestarts",
        How.OTHER,
        RESTARTS_TEXT,
        "spec.restart.maxRestarts",
    ),
    Field(
        "spec.template.spec.ttlSecondsAfterFinished",
        How.SAME,
        "spec.ttlSecondsAfterFinished",
        "spec.ttlSecondsAfterFinished",
    ),
    Field(
        "spec.template.spec.volumeClaimPolicies.**",
        How.NOT_CARRIED,
        "create the PersistentVolumeClaim, and name it in spec.template.spec.volumes or"
        " spec.checkpoint.volume.claimName",
    ),
    *(
        Field(f"spec.template.spec.{name}.**", How.NOT_NEEDED, _JOBSET)
        for name in (
            "failurePolicy",
            "successPolicy",
            "startupPolicy",
            "network",
            "coordinator",
            "managedBy",
            "suspend",
        )
    ),
)


def convert(
    source: Object, runtimes: Sequence[Object], name: str | None = None, command: list[str] | None = None
) -> Draft:
    """Returns the job of a TrainJob, whose runtime must be among `runtimes`.

    `command` is that of the image, for a container that names none. Raises InputError for what can't be a job.
    """
    draft = Draft()
    meta.take(source, draft, name)
    spec = as_object(source.get("spec"), "spec")
    runtime = _runtime(spec, runtimes)
    place = f"{runtime['kind']} {runtime['metadata']['name']}: "
    policy = (runtime.get("spec") or {}).get("mlPolicy") or {}
    for other in ("mpi", "flux", "jax", "xgboost"):
        if other in policy:
            raise InputError(
                f"{place}spec.mlPolicy.{other}: starts its processes by other means than torch.distributed:"
                " convert a job with a torch runtime, or write the command of one rank yourself"
            )
    chosen, template = _trainer_job(runtime, place, draft)
    carry(RUNTIME_FIELDS, _without_others(runtime, chosen), draft, place)
    trainers = _trainers(runtime, chosen)
    overrides = {name: [each or {} for each in _of_trainer(spec, name, trainers)] for name in OVERRIDES}
    carry(FIELDS, {**source, "spec": {**spec, **overrides}}, draft)
    where = f"{place}{JOBS}[{chosen}].template.spec.template"
    template, container, at = pods.take(template, draft, where, TRAINERS)
    place_of_container = at
    _override(spec, trainers, template, container["name"], draft)
    at, container = _trainer(spec.get("trainer") or {}, template, container["name"], at)
    _job_metadata(spec, runtime, template)
    trainer = spec.get("trainer") or {}
    owns = "numProcPerNode" in trainer
    nproc_at = "spec.trainer.numProcPerNode" if owns else f"{place}spec.mlPolicy.torch.numProcPerNode"
    nproc = trainer.get("numProcPerNode", (policy.get("torch") or {}).get("numProcPerNode"))
    nodes_at = "spec.trainer.numNodes" if "numNodes" in trainer else f"{place}spec.mlPolicy.numNodes"
    nodes = whole(trainer.get("numNodes", policy.get("numNodes", 1)), nodes_at, 1)
    if elastic := draft.job["spec"].get("elastic"):
        elastic.setdefault("minReplicas", nodes)
    tokens = pods.command(container, at, command, "spec.trainer")
    size = Size(
        replicas=nodes,
        replicas_at=nodes_at,
        processes=ranks_of_node(nproc, nproc_at, draft),
        launcher_fills_gpus=True,
    )
    settle(tokens, container, draft, f"{at}.command", size)
    pods.finish(template, container, draft, place_of_container)
    return draft


def _runtime(spec: Object, runtimes: Sequence[Object]) -> Object:
    reference = as_object(spec.get("runtimeRef"), "spec.runtimeRef")
    kind, name = reference.get("kind") or RUNTIME_KINDS[0], reference.get("name")
    for runtime in runtimes:
        if runtime.get("kind") == kind and (runtime.get("metadata") or {}).get("name") == name:
            return runtime
    raise InputError(
        f"spec.runtimeRef: the {kind} {name} is in none of the files, and half of the job is in it: run"
        f" kubectl get {kind.lower()} {name} -o yaml > runtime.yaml, and give --runtime runtime.yaml"
    )


def _trainer_job(runtime: Object, place: str, draft: Draft) -> tuple[int, Object]:
    """Returns index and pod template of the replicated job that trains. Notes all others."""
    jobs = (((runtime.get("spec") or {}).get("template") or {}).get("spec") or {}).get("replicatedJobs") or []
    found = [at for at, job in enumerate(jobs) if _step(job) == "trainer"] or [
        at for at, job in enumerate(jobs) if job.get("name") in TRAINERS
    ]
    if len(found) != 1:
        raise InputError(f"{place}{JOBS}: {len(found)} of them train: write one, with the label {STEP_LABEL}: trainer")
    for at, job in enumerate(jobs):
        if at != found[0]:
            draft.note(How.NOT_CARRIED, f"{place}{JOBS}[{at}]", _INITIALIZER, job.get("name"))
    template = ((jobs[found[0]].get("template") or {}).get("spec") or {}).get("template")
    return found[0], as_object(template, f"{place}{JOBS}[{found[0]}].template.spec.template")


def _trainers(runtime: Object, chosen: int) -> list[Any]:
    """Returns the names by which an override can mean the replicated job that trains."""
    names = [job.get("name") for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]]
    return [*(name for name in TRAINERS if name not in names), names[chosen]]


def _step(job: Object) -> Any:
    labels = ((job.get("template") or {}).get("metadata") or {}).get("labels") or {}
    return labels.get(STEP_LABEL)


def _without_others(runtime: Object, chosen: int) -> Object:
    """Returns the runtime without the replicated jobs that were noted already; their places stay."""
    runtime = copy.deepcopy(runtime)
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    runtime["spec"]["template"]["spec"]["replicatedJobs"] = [
        job if at == chosen else None for at, job in enumerate(jobs)
    ]
    return runtime


def _override(spec: Object, trainers: Sequence[Any], template: Object, container: str, draft: Draft) -> None:
    """Joins the overrides of the TrainJob with the pod template."""
    for name in OVERRIDES:
        for at, each in enumerate(_of_trainer(spec, name, trainers)):
            if each is None:
                draft.note(How.NOT_CARRIED, f"spec.{name}[{at}]", _INITIALIZER)
                continue
            patch = {key: each[key] for key in ("metadata", "spec") if each.get(key)}
            if name == "podSpecOverrides":
                patch = {"spec": {key: value for key, value in each.items() if key != "targetJobs"}}
            _patch(template, patch, container, f"spec.{name}[{at}]", draft)
    for at, each in enumerate(spec.get("runtimePatches") or []):
        patched = ((each.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec") or {}
        for number, job in enumerate(patched.get("replicatedJobs") or []):
            where = f"spec.runtimePatches[{at}].trainingRuntimeSpec.template.spec.replicatedJobs[{number}]"
            if job.get("name") in trainers:
                patch = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
                _patch(template, patch, container, where, draft)
            else:
                draft.note(How.NOT_CARRIED, where, _INITIALIZER, job.get("name"))


def _of_trainer(spec: Object, name: str, trainers: Sequence[Any]) -> list[Any]:
    """Returns the overrides, with None for each of other jobs than the training."""
    return [
        None if (jobs := each.get("targetJobs")) and not any(one.get("name") in trainers for one in jobs) else each
        for each in spec.get(name) or []
    ]


def _patch(template: Object, patch: Object, container: str, where: str, draft: Draft) -> None:
    patch = copy.deepcopy(patch)
    held = {one.get("name") for one in template["spec"].get("containers") or []}
    for one in (patch.get("spec") or {}).get("containers") or []:
        if one.get("name") in TRAINERS and one["name"] not in held:
            draft.note(How.OTHER, f"{where}: container", f"joined with the container {container}", one["name"])
            one["name"] = container
    merged = merge(template, patch)
    template.clear()
    template.update(merged)


def merge(base: Any, patch: Any, key: str = "") -> Any:
    """Returns `base` with `patch` over it; lists of named objects are joined by name, mounts by their path."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{name: merge(base.get(name), value, name) for name, value in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list) and key != "tolerations":
        identity = "mountPath" if key == "volumeMounts" else "name"
        if all(isinstance(one, dict) and identity in one for one in (*base, *patch)):
            new = {one[identity]: one for one in patch}
            if key in ("env", "volumes"):  # two sources of one of them exclude each other
                return [*(new.pop(one[identity], one) for one in base), *new.values()]
            joined = [merge(one, new.pop(one[identity])) if one[identity] in new else one for one in base]
            return [*joined, *new.values()]
    return patch


def _trainer(trainer: Object, template: Object, name: str, at: str) -> tuple[str, Object]:
    """Writes spec.trainer over the container, and returns the place of its command in the file, and the container."""
    container: Object | None = next((one for one in template["spec"]["containers"] if one.get("name") == name), None)
    if container is None:
        raise InputError(f"spec.podTemplateOverrides: the container {name} that trains is no longer in the pod")
    for field in ("image", "command", "args"):
        if trainer.get(field) is not None:
            container[field] = trainer[field]
            at = "spec.trainer" if field == "command" else at
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    if trainer.get("env"):
        container["env"] = merge(container.get("env") or [], trainer["env"], "env")
    return at, container


def _job_metadata(spec: Object, runtime: Object, template: Object) -> None:
    """Gives the pods the labels and annotations of the JobSet, which there is none of."""
    sources = [((runtime.get("spec") or {}).get("template") or {}).get("metadata") or {}, spec]
    for each in spec.get("runtimePatches") or []:
        sources.append(((each.get("trainingRuntimeSpec") or {}).get("template") or {}).get("metadata") or {})
    for source in sources:
        for field in ("labels", "annotations"):
            if source.get(field):
                metadata = template.get("metadata") or {}
                metadata[field] = {**source[field], **(metadata.get(field) or {})}
                template["metadata"] = metadata
