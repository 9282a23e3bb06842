"""Converts a PyTorchJob (kubeflow.org/v1) of Kubeflow's Training Operator. Pure."""

from __future__ import annotations

from typing import Any

from dtj.convert import meta, pods
from dtj.convert.fields import GANG, MANAGED_BY, Draft, Field, as_object, carry, shown, whole
from dtj.convert.program import Size, ranks_of_node, settle
from dtj.errors import InputError
from dtj_core.api.launcher_flags import RESTARTS_TEXT, How
from dtj_core.plan.model import Object

KIND = "PyTorchJob"
API_VERSIONS = ("kubeflow.org/v1",)
REPLICAS = "spec.pytorchReplicaSpecs"
ROLES = ("Master", "Worker")
_RDZV = "the agents of the pods rendezvous by themselves"
_POLICY = (
    "OnFailure and Always restart the group within spec.restart; Never is spec.restart.maxRestarts: 0;"
    " ExitCode is two spec.restart.rules"
)


def _run_policy(at: str) -> tuple[Field, ...]:
    return (
        Field(
            f"{at}.cleanPodPolicy",
            How.OTHER,
            "spec.cleanPodPolicy; Running is All: a finished job's pods don't complete, they are deleted",
            "spec.cleanPodPolicy",
            lambda value: {"All": "All", "Running": "All", "None": "None"}.get(value, value),
        ),
        Field(
            f"{at}.ttlSecondsAfterFinished", How.SAME, "spec.ttlSecondsAfterFinished", "spec.ttlSecondsAfterFinished"
        ),
        Field(f"{at}.activeDeadlineSeconds", How.SAME, "spec.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
        Field(
            f"{at}.backoffLimit",
            How.OTHER,
            RESTARTS_TEXT,
            "spec.restart.maxRestarts",
        ),
        Field(f"{at}.suspend", How.SAME, "spec.suspend", "spec.suspend"),
        Field(
            f"{at}.managedBy",
            How.NOT_CARRIED,
            MANAGED_BY,
        ),
        Field(
            f"{at}.schedulingPolicy.queue",
            How.OTHER,
            "the annotation scheduling.volcano.sh/queue-name of the pods, which Volcano reads",
        ),
        Field(f"{at}.schedulingPolicy.priorityClass", How.OTHER, "spec.template.spec.priorityClassName"),
        Field(
            f"{at}.schedulingPolicy.scheduleTimeoutSeconds",
            How.OTHER,
            "spec.startupDeadlineSeconds, within which all ranks must be started",
            "spec.startupDeadlineSeconds",
            lambda value: value or None,
        ),
        Field(f"{at}.schedulingPolicy.minAvailable", How.NOT_CARRIED, GANG),
        Field(f"{at}.schedulingPolicy.minResources.**", How.NOT_CARRIED, GANG),
    )


FIELDS = (
    *meta.METADATA,
    *_run_policy("spec.runPolicy"),
    *_run_policy("spec"),  # where version 0.6 and older had them
    Field(
        "spec.successPolicy",
        How.OTHER,
        "spec.successPolicy; AllWorkers is AllRanks, its default, and an empty one is Rank0. Write Rank0 too where the"
        " Master ends a job whose other ranks never end",
        "spec.successPolicy",
        lambda value: {"AllWorkers": None, "": "Rank0", "Default": "Rank0"}.get(value, value),
    ),
    Field("spec.nprocPerNode", How.OTHER, "spec.processesPerPod; auto and gpu are its default, one rank for each GPU"),
    Field("spec.elasticPolicy.minReplicas", How.SAME, "spec.elastic.minReplicas"),
    Field("spec.elasticPolicy.maxReplicas", How.SAME, "spec.elastic.maxReplicas"),
    Field(
        "spec.elasticPolicy.maxRestarts",
        How.OTHER,
        RESTARTS_TEXT,
    ),
    Field("spec.elasticPolicy.nProcPerNode", How.OTHER, "spec.processesPerPod"),
    *(
        Field(f"spec.elasticPolicy.{name}.**", How.NOT_NEEDED, _RDZV)
        for name in ("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone")
    ),
    Field(
        "spec.elasticPolicy.metrics.**",
        How.NOT_CARRIED,
        "create a HorizontalPodAutoscaler whose scaleTargetRef is the job: it has the scale subresource",
    ),
    *(
        Field(f"{REPLICAS}.{role}.replicas", How.OTHER, "spec.replicas is the sum of Master and Worker")
        for role in ROLES
    ),
    *(Field(f"{REPLICAS}.{role}.restartPolicy", How.OTHER, _POLICY) for role in ROLES),
    *(
        Field(f"{REPLICAS}.{role}.template.**", How.SAME, "spec.template, spec.image and spec.entrypoint: see below")
        for role in ROLES
    ),
    Field("spec.pytorchReplicaSpecs", How.REFUSED, "write Master or Worker"),
)
TEMPLATE_DIFFERS = (
    "metadata",
    "ports",
    "imagePullPolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
)


def convert(source: Object, name: str | None = None, command: list[str] | None = None) -> Draft:
    """Returns the job of a PyTorchJob. `command` is that of the image, for a container that names none.

    Raises InputError for what one job with one template can't be.
    """
    draft = Draft()
    meta.take(source, draft, name)
    spec = as_object(source.get("spec"), "spec")
    specs = as_object(spec.get("pytorchReplicaSpecs"), REPLICAS)
    for role in specs:
        if role not in ROLES:
            raise InputError(f"{REPLICAS}.{role}: no replica type of a PyTorchJob: write Master or Worker")
    counts = {
        role: whole(as_object(specs[role], f"{REPLICAS}.{role}").get("replicas", 1), f"{REPLICAS}.{role}.replicas", 0)
        for role in ROLES
        if role in specs
    }
    present = [role for role, count in counts.items() if count]
    if not present:
        raise InputError(f"{REPLICAS}: no pods: write Master or Worker with replicas of 1 or more")
    role = present[0]
    carry(FIELDS, source, draft)
    for idle in set(counts) - set(present):
        text = f"{idle} has no pods, so nothing of its template is in the job"
        draft.note(How.NOT_CARRIED, f"{REPLICAS}.{idle}.template", text)
    taken = {each: _template(specs[each], each, draft) for each in present}
    template, container, place = taken[role]
    if len(present) == 2:
        _same_program(taken["Master"], taken["Worker"], draft)
    _restart_policy([specs[each].get("restartPolicy") for each in present], draft)
    replicas = sum(counts.values())
    elastic = _elastic(spec.get("elasticPolicy") or {}, replicas, draft)
    tokens = pods.command(container, place, command, place)
    nproc_at = "spec.nprocPerNode" if "nprocPerNode" in spec else "spec.elasticPolicy.nProcPerNode"
    nproc = spec.get("nprocPerNode", elastic.get("nProcPerNode"))
    size = Size(
        replicas=replicas,
        replicas_at=f"{REPLICAS}.*.replicas",
        processes=ranks_of_node(nproc, nproc_at, draft),
        launcher_fills_gpus=True,
    )
    settle(tokens, container, draft, f"{place}.command", size)
    if elastic.get("maxRestarts") is not None:
        draft.limit_restarts(elastic["maxRestarts"])
    _scheduling({**spec, **(spec.get("runPolicy") or {})}.get("schedulingPolicy") or {}, template)
    pods.finish(template, container, draft, place)
    return draft


def _template(replica: Object, role: str, draft: Draft) -> tuple[Object, Object, str]:
    where = f"{REPLICAS}.{role}.template"
    return pods.take(as_object(replica.get("template"), where), draft, where, ("pytorch",))


def _same_program(master: tuple[Object, Object, str], worker: tuple[Object, Object, str], draft: Draft) -> None:
    """Raises InputError where Master and Worker differ in more than names, labels, ports and probes.

    Labels and annotations of the workers join the Master's.
    """
    (template, container, place), (other, its_container, its_place) = master, worker
    for field in sorted({*container, *its_container} - {"name"}):
        mine, its = container.get(field), its_container.get(field)
        if _comparable(mine) == _comparable(its):
            continue
        if field in TEMPLATE_DIFFERS:
            draft.note(
                How.NOT_CARRIED, f"{its_place}.{field}", f"differs from {place}.{field}, which all pods have now"
            )
            if field not in container:
                container[field] = its
            continue
        raise InputError(
            f"{place}.{field}{_quoted(mine)} and {its_place}.{field}{_quoted(its)} differ, but all pods of a"
            " DistributedTrainingJob are the same: write one program for both, which looks at RANK"
        )
    names = {container["name"], its_container["name"]}
    for field in sorted({*template["spec"], *other["spec"]}):
        mine, its = (each["spec"].get(field) for each in (template, other))
        if field == "containers":  # those that train are compared above
            mine, its = ([one for one in each if one.get("name") not in names] for each in (mine, its))
        if _comparable(mine) != _comparable(its):
            raise InputError(
                f"{REPLICAS}.Master.template.spec.{field} and {REPLICAS}.Worker.template.spec.{field} differ, but"
                " all pods of a DistributedTrainingJob are the same: write the same in both"
            )
    for field, value in (other.get("metadata") or {}).items():
        held = template.setdefault("metadata", {}) if template.get("metadata") is None else template["metadata"]
        if held.get(field) != value:
            where = f"{REPLICAS}.Worker.template.metadata.{field}"
            draft.note(How.OTHER, where, "joined with the Master's, which win: all pods are the same")
            held[field] = {**value, **(held.get(field) or {})} if isinstance(value, dict) else held.get(field, value)


def _comparable(value: Any) -> Any:
    """Returns a value in which an empty list or object equals an absent one, and 1 equals "1"."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items() if item not in (None, [], {})} or None
    if isinstance(value, list):
        if all(isinstance(item, dict) and "name" in item for item in value):
            return sorted((_comparable(item) for item in value), key=lambda item: (item or {}).get("name", "")) or None
        return [_comparable(item) for item in value] or None
    return None if value is None else str(value)


def _quoted(value: Any) -> str:
    text = "absent" if value is None else shown(value)
    return f" ({text})" if text else ""


def _restart_policy(policies: list[Any], draft: Draft) -> None:
    restart = draft.job["spec"].setdefault("restart", {})
    if "Never" in policies:
        restart["maxRestarts"] = 0  # backoffLimit limits restarts that this policy forbids
    if "ExitCode" in policies:
        restart["rules"] = [
            {"action": "Fail", "exitCodePreset": "Permanent"},
            {"action": "Restart", "exitCodePreset": "Retryable"},
        ]
    if not restart:
        draft.job["spec"].pop("restart")


def _elastic(given: Any, replicas: int, draft: Draft) -> Object:
    """Writes spec.elastic, and returns the policy."""
    policy = as_object(given, "spec.elasticPolicy")
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    if least is not None or most is not None:
        elastic = {"minReplicas": replicas if least is None else least}
        if most is not None:
            elastic["maxReplicas"] = most
        draft.put("spec.elastic", elastic)
    return policy


def _scheduling(policy: Object, template: Object) -> None:
    if queue := policy.get("queue"):
        metadata = template.get("metadata") or {}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), "scheduling.volcano.sh/queue-name": queue}
        template["metadata"] = metadata
    if priority := policy.get("priorityClass"):
        template["spec"].setdefault("priorityClassName", priority)
