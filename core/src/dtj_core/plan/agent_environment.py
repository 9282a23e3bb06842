"""The environment of the agent (docs/reference/contract.md, "Environment of the agent")."""

from __future__ import annotations

import json

from dtj_contract import names
from dtj_core.api.elastic import Elastic
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Settings

# Part of the grace period that is reserved for the agent itself.
STOP_MARGIN_SECONDS = 5


def agent_environment(
    job: Job, settings: Settings, *, attempt_floor: int, grace_seconds: int, termination_log: str
) -> list[Object]:
    """Returns the `env` entries of the agent. Every name begins with DTJ_."""
    values = {
        names.ENV_JOB: job.name,
        names.ENV_JOB_UID: job.uid,
        names.ENV_NAMESPACE: job.namespace,
        names.ENV_REPLICAS: str(job.spec.replicas),
        names.ENV_PROCESSES_PER_POD: str(job.spec.processes),
        names.ENV_PEERS: f"{job.name}-{{}}.{job.name}:{settings.agent_port}",
        names.ENV_LISTEN: f"{settings.listen_host}:{settings.agent_port}",
        names.ENV_ATTEMPT_FLOOR: str(attempt_floor),
        names.ENV_MAX_RESTARTS: str(job.spec.restart.max_restarts),
        names.ENV_RESTART_WINDOW: str(job.spec.restart.window_seconds),
        names.ENV_MAX_WITHOUT_PROGRESS: str(job.spec.restart.max_restarts_without_progress),
        names.ENV_GENERATION: str(job.generation),
        names.ENV_BACKEND: job.spec.resolved_backend,
        names.ENV_SECRET_FILE: f"{names.SECRET_DIR}/{names.SECRET_KEY}",
        names.ENV_STATE_DIR: names.STATE_DIR,
        names.ENV_TERMINATION_LOG: termination_log,
        names.ENV_GRACE_SECONDS: str(max(1, grace_seconds - STOP_MARGIN_SECONDS)),
    }
    # Without these the agent uses its own defaults, and the pod templates of older jobs stay
    # as they are.
    if job.spec.restart.stop_grace_seconds is not None:
        values[names.ENV_STOP_GRACE_SECONDS] = str(job.spec.restart.stop_grace_seconds)
    if job.spec.restart.failure_rules:
        values[names.ENV_RESTART_RULES] = _rules(job)
    if job.spec.warm_workers != names.WARM_AUTO:
        values[names.ENV_WARM_WORKERS] = job.spec.warm_workers
    if job.spec.kubeflow_progress != names.KUBEFLOW_AUTO:
        values[names.ENV_KUBEFLOW_PROGRESS] = job.spec.kubeflow_progress
    if job.spec.preload:
        values[names.ENV_PRELOAD] = ",".join(job.spec.preload)
    if job.spec.spares:
        values[names.ENV_SPARES] = str(job.spec.spares)
    if job.spec.elastic is not None:
        values |= _elastic(job.spec.elastic)
    hangs = job.spec.hang_detection
    if hangs.policy != "Restart":
        values[names.ENV_HANG_POLICY] = hangs.policy
    if hangs.min_seconds is not None:
        values[names.ENV_HANG_MIN_SECONDS] = str(hangs.min_seconds)
    if job.spec.progress_deadline_seconds is not None:
        values[names.ENV_PROGRESS_DEADLINE] = str(job.spec.progress_deadline_seconds)
    if job.spec.success_policy != names.SUCCESS_ALL:
        values[names.ENV_SUCCESS_POLICY] = job.spec.success_policy
    if job.spec.resolved_engine != names.DEFAULT_ENGINE:
        values[names.ENV_ENGINE] = job.spec.resolved_engine
    if job.spec.checkpoint:
        root = job.spec.checkpoint.mount_path.rstrip("/")
        values |= {
            names.ENV_CHECKPOINT_DIR: f"{root}/{job.namespace}/{job.name}",
            names.ENV_CHECKPOINT_EVERY: str(job.spec.checkpoint.every_steps),
            names.ENV_CHECKPOINT_KEEP: str(job.spec.checkpoint.keep),
        }
    fields = {
        names.ENV_ORDINAL: f"metadata.labels['{names.LABEL_POD_INDEX}']",
        names.ENV_POD_NAME: "metadata.name",
        names.ENV_POD_IP: "status.podIP",
        names.ENV_NODE_NAME: "spec.nodeName",
    }
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def _elastic(elastic: Elastic) -> dict[str, str]:
    values = {
        names.ENV_MIN_REPLICAS: str(elastic.min_replicas),
        names.ENV_ELASTIC_WAIT: f"{elastic.wait_seconds:g}",
        names.ENV_ELASTIC_BATCH: elastic.batch,
        names.ENV_ELASTIC_LEARNING_RATE: elastic.learning_rate,
    }
    if elastic.max_replicas is not None:
        values[names.ENV_MAX_REPLICAS] = str(elastic.max_replicas)
    return values


def _rules(job: Job) -> str:
    """Returns restart.rules as JSON without `$`, because the kubelet expands `$(NAME)` in a value."""
    rules = [rule.model_dump(by_alias=True, exclude_none=True) for rule in job.spec.restart.failure_rules]
    return json.dumps(rules, separators=(",", ":"), ensure_ascii=False).replace("$", "\\u0024")
