"""Reads a DistributedTrainingJob: strictly if a person wrote it, tolerantly if it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from dtj_core.api.base_model import TOLERANT, Model
from dtj_core.api.errors import InvalidJob, Violation
from dtj_core.api.template import PodTemplate, find_trainer_container
from dtj_core.api.v1alpha1 import DistributedTrainingJob, Spec


def validate(obj: dict[str, Any]) -> DistributedTrainingJob:
    """Returns the job if `kubectl apply` would accept it.

    Raises InvalidJob with every violation otherwise.
    """
    return _parse(obj, None)


def read(obj: dict[str, Any]) -> DistributedTrainingJob:
    """Returns a stored job. Fields that this version does not know are ignored.

    Raises InvalidJob if the object breaks a rule, which happens only if a CRD of another version
    admitted it.
    """
    return _parse({k: v for k, v in obj.items() if k != "status"}, TOLERANT)


def salvage(obj: dict[str, Any]) -> Spec:
    """Returns the readable part of the spec of a stored object that `read` rejects.

    No rule is checked. The result is enough to follow a running job: whether it is suspended, its
    deadline, and which container trains.
    """
    spec = dict(obj.get("spec") or {})
    while True:
        try:
            found = Spec.model_validate(spec, context=TOLERANT, by_alias=True, by_name=False)
            break
        except ValidationError as error:
            unread = {each["loc"][0] for each in error.errors() if each["loc"]} & spec.keys()
            spec = {name: value for name, value in spec.items() if name not in unread} if unread else {}
    try:
        # Not found.trainer: it is cached, and the copy would keep it.
        find_trainer_container(found.merged_template).get("name")
    except (AttributeError, LookupError, TypeError):
        found = found.model_copy(update={"template": None})
    replicas = (obj.get("spec") or {}).get("replicas")
    return found.model_copy(update={"replicas": replicas}) if type(replicas) is int and replicas > 0 else found


def violations(obj: dict[str, Any]) -> tuple[Violation, ...]:
    """Returns every violation in an object that a person wrote; () if it is valid."""
    try:
        validate(obj)
    except InvalidJob as error:
        return error.violations
    return ()


def _parse(obj: dict[str, Any], context: str | None) -> DistributedTrainingJob:
    """Returns the job. Raises InvalidJob with all violations of the schema, or else with those of the rules."""
    job = template = None
    found: list[Violation] = []
    try:
        job = DistributedTrainingJob.model_validate(obj, context=context, by_alias=True, by_name=False)
    except ValidationError as error:
        found += _violations(error, ())
    spec = obj.get("spec")
    written = spec.get("template") if isinstance(spec, dict) else None
    try:
        template = PodTemplate.model_validate(
            written if isinstance(written, dict) else {}, by_alias=True, by_name=False
        )
    except ValidationError as error:
        found += _violations(error, ("spec", "template"))
    if job is None or template is None:
        raise InvalidJob(tuple(found))
    broken = (*_broken(job, ()), *_broken(template, ("spec", "template")))
    if broken:
        raise InvalidJob(broken)
    return job


def _violations(error: ValidationError, at: tuple[str, ...]) -> Iterator[Violation]:
    return (Violation(_path((*at, *each["loc"])), _message(each)) for each in error.errors())


def _broken(model: Model, at: tuple[str | int, ...]) -> Iterator[Violation]:
    """Yields a violation for every rule that does not hold, of a model and of all models in it."""
    for rule in model.rules:
        if rule.holds is not None and not rule.holds(model):
            yield Violation(_path((*at, rule.field) if rule.field else at), rule.message)
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        for index, item in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(item, Model):
                yield from _broken(item, (*at, info.alias or name, *(() if index is None else (index,))))


def _path(loc: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".") or "object"


def _message(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] == "missing":
        return "required, but missing"
    return str(error["msg"]).removeprefix("Value error, ")
