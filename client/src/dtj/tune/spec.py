"""The document of a sweep, sweep.yaml: its fields, defaults and rules."""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, field_validator, model_validator

from dtj import jobfile
from dtj.errors import InputError
from dtj_contract import names
from dtj_core.api.base_model import Model

KIND = "DistributedTrainingSweep"
MAX_NAME = 47
"""Characters of a sweep's name. A job is named NAME-0000, and its name has at most 52."""
STEP_METRICS = ("loss", "samplesPerSecond", "stepsPerSecond", "percent")
"""Numbers of status.progress that are not in its `metrics`."""
_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_TAGS = ("float", "int", "choice")


def _number(value: Any) -> Any:
    """Returns the number in a text, because YAML reads 1e-4 as text (it wants 1.0e-4)."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Number = Annotated[float, BeforeValidator(_number)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]


class _Parameter(Model):
    """Place of a parameter in the trial's job: an argument of the entrypoint, or a variable."""

    arg: Text | None = None
    """Argument, as in --lr; with {} in it, as in optimizer.lr={}, it is one word. Default: --NAME."""
    env: EnvName | None = None
    """Environment variable that gets the value, instead of an argument."""

    @model_validator(mode="after")
    def _one_place(self) -> _Parameter:
        if self.arg is not None and self.env is not None:
            raise ValueError("set arg or env, not both")
        return self


class FloatParameter(_Parameter):
    """A real number between two bounds."""

    type: Literal["float"]
    min: Number
    max: Number
    log: bool = False
    """Whether the logarithm is searched evenly, as for learning rates."""
    step: Number | None = None
    """Distance of the values, from min."""

    @model_validator(mode="after")
    def _bounds(self) -> FloatParameter:
        _check_bounds(self.min, self.max, self.step, log=self.log)
        return self


class IntParameter(_Parameter):
    """A whole number between two bounds, both included."""

    type: Literal["int"]
    min: int
    max: int
    log: bool = False
    step: int | None = None

    @model_validator(mode="after")
    def _bounds(self) -> IntParameter:
        _check_bounds(self.min, self.max, self.step, log=self.log)
        return self


class ChoiceParameter(_Parameter):
    """One of a list of values."""

    type: Literal["choice"]
    values: list[bool | int | float | str] = Field(min_length=1, max_length=1000)

    @field_validator("values")
    @classmethod
    def _different(cls, values: list[Any]) -> list[Any]:
        if len({str(value) for value in values}) < len(values):
            raise ValueError("a value is there twice: every value must differ from the others")
        return values


Parameter = Annotated[FloatParameter | IntParameter | ChoiceParameter, Field(discriminator="type")]


class Objective(Model):
    """The number that the search improves."""

    metric: Text
    """loss, samplesPerSecond, stepsPerSecond, percent, or a name in status.progress.metrics."""
    direction: Literal["minimize", "maximize"] = "minimize"
    value: Literal["last", "best"] = "last"
    """Whether a trial counts with the value of its last step, or with the best that was seen."""


class Algorithm(Model):
    """The way in which parameters are drawn."""

    name: Literal["tpe", "random", "pbt"] = "tpe"
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """The parameters of a trial depend on the seed, its number and the trials that are known by then."""
    startup_trials: int = Field(default=10, ge=1)
    """tpe: trials that are drawn at random before the model is used."""
    population: int | None = Field(default=None, ge=2, le=1024)
    """pbt: trials of a generation. Required there."""
    steps_per_generation: int | None = Field(default=None, ge=1)
    """pbt: steps by which each generation trains further than the one before. Required there."""

    @model_validator(mode="after")
    def _needs(self) -> Algorithm:
        if self.name == "pbt" and (self.population is None or self.steps_per_generation is None):
            raise ValueError("pbt needs population and stepsPerGeneration")
        if self.name != "pbt" and (self.population is not None or self.steps_per_generation is not None):
            raise ValueError("population and stepsPerGeneration are of pbt: write name: pbt")
        return self


class Pruner(Model):
    """The way in which trials that lag behind are stopped early."""

    name: Literal["none", "median", "asha", "hyperband"] = "none"
    min_steps: int = Field(default=1, ge=1)
    """Steps before which no trial is stopped; asha and hyperband: the first rung."""
    max_steps: int | None = Field(default=None, ge=1)
    """hyperband: steps of a whole training. Required there."""
    reduction_factor: int = Field(default=3, ge=2)
    """asha and hyperband: of the trials that reach a rung, one in so many continues."""
    startup_trials: int = Field(default=5, ge=0)
    """median: finished trials before the first one is stopped."""

    @model_validator(mode="after")
    def _needs(self) -> Pruner:
        if self.name == "hyperband" and self.max_steps is None:
            raise ValueError("hyperband needs maxSteps, the steps of a whole training")
        if self.max_steps is not None and self.max_steps <= self.min_steps:
            raise ValueError("maxSteps must be greater than minSteps")
        return self


class SweepSpec(Model):
    """The search."""

    objective: Objective
    parameters: Annotated[dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.-]*$")], Parameter],
                          Field(min_length=1, max_length=256)]  # fmt: skip
    trials: int = Field(default=20, ge=1, le=10000)
    """Number of trials."""
    parallel: int = Field(default=1, ge=1, le=1024)
    """Trials at once."""
    max_ranks: int | None = Field(default=None, ge=1)
    """Ranks of all trials at once. With one rank per GPU, that is the number of GPUs."""
    max_failed_trials: int = Field(default=10, ge=1)
    """Failed trials after which no further trial starts."""
    timeout_seconds: int | None = Field(default=None, ge=1)
    """Seconds from the begin of the sweep after which no further trial starts."""
    step_deadline_seconds: int = Field(default=3600, ge=1)
    """Seconds without a new step after which a trial whose ranks run is stopped, and fails."""
    algorithm: Algorithm = Algorithm()
    pruner: Pruner = Pruner()
    job: dict[str, Any] | None = None
    """The DistributedTrainingJob of a trial: its spec, and metadata but the name."""
    job_file: Text | None = None
    """File of that job, instead of `job`; a relative path starts at sweep.yaml."""

    @model_validator(mode="after")
    def _one_job(self) -> SweepSpec:
        if (self.job is None) == (self.job_file is None):
            raise ValueError("set exactly one of job and jobFile")
        return self

    @model_validator(mode="after")
    def _no_pruner(self) -> SweepSpec:
        if self.algorithm.name == "pbt" and self.pruner.name != "none":
            raise ValueError("pbt replaces trials that lag behind by itself: omit pruner")
        return self


class Metadata(Model):
    """Name of the sweep."""

    name: Annotated[str, StringConstraints(pattern=_NAME, max_length=MAX_NAME)]


class SweepDocument(Model):
    """sweep.yaml."""

    api_version: Literal["training.dtj.dev/v1alpha1"]
    kind: Literal["DistributedTrainingSweep"]
    metadata: Metadata
    spec: SweepSpec

    @property
    def name(self) -> str:
        return self.metadata.name


def load(path: str) -> SweepDocument:
    """Returns the sweep of a file, with the content of its jobFile as `job`. Raises InputError."""
    documents = jobfile.read_documents(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise InputError(f"{path}: must hold one {KIND}, not {len(documents)} documents")
    return parse(documents[0], path)


def parse(document: dict[str, Any], path: str) -> SweepDocument:
    """Returns the sweep of a document that was read from `path`. Raises InputError with every wrong field."""
    kind = jobfile.kind_of(document)
    if kind != f"{names.API_VERSION}, {KIND}":
        hint = "; dtj run and dtj submit take a job" if document.get("kind") == names.KIND else ""
        raise InputError(
            f"{path}: not a sweep but {kind}; write apiVersion: {names.API_VERSION} and kind: {KIND}{hint}"
        )
    try:
        sweep = SweepDocument.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InputError("\n".join(f"{path}: {_explain(each)}" for each in error.errors())) from error
    if sweep.spec.job_file is None:
        return sweep
    file = str(Path(path).parent / sweep.spec.job_file) if path != "-" else sweep.spec.job_file
    job = jobfile.the_only(jobfile.read_documents(file), file)
    return sweep.model_copy(update={"spec": sweep.spec.model_copy(update={"job": job, "job_file": None})})


def written(sweep: SweepDocument) -> dict[str, Any]:
    """Returns the sweep as a document with all defaults."""
    return sweep.model_dump(by_alias=True, exclude_none=True)


def _check_bounds(low: float, high: float, step: float | None, *, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("min and max must be finite")
    if low > high:
        raise ValueError(f"min {low:g} is greater than max {high:g}: swap them")
    if log and low <= 0:
        raise ValueError(f"log needs min > 0, and min is {low:g}")
    if step is not None and step <= 0:
        raise ValueError(f"step must be greater than 0, not {step:g}")
    if log and step is not None:
        raise ValueError("set log or step, not both")


def _explain(error: Any) -> str:
    """Returns a violation in one line: the field, and what to write instead."""
    place = [part for at, part in enumerate(error["loc"]) if not _is_tag(error["loc"], at)]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "the document"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(place[-1]), _known_fields(), 1)
        return f"{path}: unknown field" + (f"; did you mean {near[0]}?" if near else "")
    if error["type"] == "missing":
        return f"{path}: required, but missing"
    if error["type"] == "union_tag_not_found":
        return f"{path}.type: required, but missing: write one of {', '.join(_TAGS)}"
    if error["type"] == "union_tag_invalid":
        return f"{path}.type: write one of {', '.join(_TAGS)}, not {error['ctx']['tag']!r}"
    message = re.sub(r"^Value error, ", "", str(error["msg"]))
    given = error["input"]
    shown = f", not {given!r}" if message.startswith("Input should") and not isinstance(given, dict | list) else ""
    return f"{path}: {message}{shown}"


def _is_tag(place: tuple[Any, ...], at: int) -> bool:
    """Returns whether this part of an error's place is pydantic's name for the chosen type of a parameter."""
    return at == 3 and place[:2] == ("spec", "parameters") and place[3] in _TAGS


def _known_fields() -> list[str]:
    models = (SweepDocument, Metadata, SweepSpec, Objective, Algorithm, Pruner, FloatParameter, ChoiceParameter)
    return sorted({str(field.alias) for model in models for field in model.model_fields.values()})
