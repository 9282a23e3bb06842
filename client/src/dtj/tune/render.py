"""The job of a trial: the sweep's template with the trial's parameters in it. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dtj.errors import InputError
from dtj.field_hints import explain
from dtj.tune.spec import ChoiceParameter, SweepDocument
from dtj_contract import names
from dtj_core import api
from dtj_core.api import runtime
from dtj_core.api.base_model import INT32_MAX
from dtj_core.plan.model import Object

LABEL_SWEEP = names.GROUP + "/sweep"
LABEL_TRIAL = names.GROUP + "/trial"
ANNOTATION_SWEEP_UID = names.GROUP + "/sweep-uid"

ENV_STEPS, ENV_FROM = "TUNE_STEPS", "TUNE_FROM"
"""pbt: the step to which a trial trains, and the job whose checkpoint it starts from; both for the script to read."""

TTL = "ttlSecondsAfterFinished"
NEVER_SECONDS = INT32_MAX
"""TTL of a job whose runtime may give one: 68 years, because the job can't write that it has none."""

Value = bool | int | float | str


def job_name(sweep: str, number: int) -> str:
    """Returns the name of the job of a trial. A trial has this job and no other."""
    return f"{sweep}-{number:04d}"


def text(value: Value) -> str:
    """Returns a parameter as an argument: true and false in lower case, a float with all its digits."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def trial_job(
    sweep: SweepDocument, number: int, params: Mapping[str, Value], *, begins_at: int | None = None
) -> Object:
    """Returns the job of a trial, which with pbt begins at the checkpoint of the trial `begins_at`."""
    job = copy.deepcopy(sweep.spec.job) or {}
    metadata = {**(job.get("metadata") or {}), "name": job_name(sweep.name, number)}
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL_SWEEP: sweep.name, LABEL_TRIAL: str(number)}
    spec = {**(job.get("spec") or {})}
    for name, parameter in sweep.spec.parameters.items():
        if parameter.env is not None:
            _set_variable(spec, parameter.env, text(params[name]))
        else:
            _add_argument(spec, parameter.arg or f"--{name}", text(params[name]))
    algorithm = sweep.spec.algorithm
    if algorithm.population and algorithm.steps_per_generation:
        _set_variable(spec, ENV_STEPS, str((1 + number // algorithm.population) * algorithm.steps_per_generation))
        if begins_at is not None:
            _set_variable(spec, ENV_FROM, job_name(sweep.name, begins_at))
    if spec.get(runtime.REF) and spec.get(TTL) is None:
        spec[TTL] = NEVER_SECONDS
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}


def check(sweep: SweepDocument, path: str) -> api.DistributedTrainingJob:
    """Returns a trial's job as the API server would accept it. Raises InputError with every field that it rejects."""
    job = sweep.spec.job or {}
    unknown = sorted(set(job) - {"apiVersion", "kind", "metadata", "spec", "status"})
    if unknown:
        raise InputError(f"{path}: spec.job.{unknown[0]}: unknown field; a job has metadata and spec")
    for field in ("metadata", "spec"):
        if not isinstance(job.get(field, {}), dict):
            raise InputError(f"{path}: spec.job.{field}: must be an object")
    if "spec" not in job:
        raise InputError(f"{path}: spec.job.spec: required, but missing")
    if job["spec"].get(TTL) is not None:
        raise InputError(
            f"{path}: spec.job.spec.{TTL}: a trial whose job is deleted before dtj tune has seen its end would start "
            "again; omit it, and delete the jobs once the sweep has ended"
        )
    for field, model in sweep.spec.parameters.items():
        if model.env is None and not isinstance(job["spec"].get("entrypoint"), dict):
            raise InputError(
                f"{path}: spec.parameters.{field}: the job has no entrypoint that could get an argument; "
                "write spec.job.spec.entrypoint, or give the parameter as env"
            )
    checked = _validated(sample(sweep), f"{path}: spec.job.")
    if checked.spec.suspend:
        raise InputError(f"{path}: spec.job.spec.suspend: no trial would start; omit it")
    volume = checked.spec.checkpoint.volume if checked.spec.checkpoint else None
    if sweep.spec.algorithm.name == "pbt" and (volume is None or volume.claim_template):
        raise InputError(
            f"{path}: spec.job.spec.checkpoint.volume: with pbt, a trial starts from the checkpoint of another one: "
            "name a volume that all trials share"
        )
    return checked


def with_runtime(sweep: SweepDocument, given: Object, path: str) -> api.DistributedTrainingJob:
    """Returns a trial's job with the spec of its runtime. Raises InputError if the two make no job."""
    job = sample(sweep)
    merged = {**job, "spec": runtime.merge(given, job["spec"])}
    return _validated(merged, f"{path}: spec.job with its runtime: ")


def ranks(job: api.DistributedTrainingJob) -> int:
    """Returns the ranks of a job."""
    return job.spec.replicas * job.spec.processes


def parallel(sweep: SweepDocument, ranks: int, path: str) -> int:
    """Returns how many trials may run at once. Raises InputError if maxRanks is too small for one of them."""
    limit = sweep.spec.max_ranks
    if limit is None:
        return sweep.spec.parallel
    if ranks > limit:
        raise InputError(f"{path}: spec.maxRanks: {limit} is less than the {ranks} ranks of one trial")
    return min(sweep.spec.parallel, limit // ranks)


def sample(sweep: SweepDocument) -> Object:
    """Returns the job of trial 0 with any values of the parameters."""
    return trial_job(sweep, 0, {name: example(model) for name, model in sweep.spec.parameters.items()})


def example(parameter: Any) -> Value:
    """Returns a value of the parameter."""
    value: Value = parameter.values[0] if isinstance(parameter, ChoiceParameter) else parameter.min
    return value


def _validated(job: Object, place: str) -> api.DistributedTrainingJob:
    try:
        return api.validate(job)
    except api.InvalidJob as error:
        lines = [f"{place}{explain(violation, job)}" for violation in error.violations]
        raise InputError("\n".join(lines)) from error


def _add_argument(spec: Object, form: str, value: str) -> None:
    entrypoint = spec["entrypoint"] = {**spec["entrypoint"]}
    added = [form.replace("{}", value)] if "{}" in form else [form, value]
    entrypoint["args"] = [*(entrypoint.get("args") or ()), *added]


def _set_variable(spec: Object, name: str, value: str) -> None:
    """Sets a variable where the job has its own: in the template's container, else in spec.env."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    holder = next((each for each in containers if isinstance(each, dict) and each.get("env")), spec)
    others = [each for each in holder.get("env") or () if each.get("name") != name]
    holder["env"] = [*others, {"name": name, "value": value}]
