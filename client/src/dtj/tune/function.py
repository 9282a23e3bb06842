"""`tune(objective, space)`: a search whose objective is a Python function, run as local jobs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtj.errors import DtjError, InputError
from dtj.local import processes
from dtj.tune import function_trial, render, spec
from dtj.tune.driver import STORAGE, drive, held, limits_of
from dtj.tune.function_trial import Trial
from dtj.tune.local_jobs import LocalTrialJobs
from dtj.tune.study import Details, StudyStore
from dtj.tune.view import PlainSweepView

ORIGIN = "tune()"
METRIC = "value"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The end of a search."""

    best_params: dict[str, Any] | None
    """None: no trial is complete."""
    best_value: float | None
    best_trial: int | None
    trials: Sequence[Details]
    folder: Path
    """Storage, trials, page, and best/ with the folder of the best trial."""


class TuneStopped(DtjError):
    """A signal stopped the search. The next call continues it."""


def tune(
    objective: Callable[[Trial], float | None],
    space: Mapping[str, Mapping[str, Any]],
    *,
    direction: str = "minimize",
    trials: int = 20,
    parallel: int = 1,
    ranks: int = 1,
    algorithm: Mapping[str, Any] | None = None,
    pruner: Mapping[str, Any] | None = None,
    timeout_seconds: int | None = None,
    step_deadline_seconds: int = 3600,
    name: str | None = None,
    folder: str | Path | None = None,
    quiet: bool = False,
) -> Result:
    """Searches the parameters of a function, or continues a search that was stopped or killed.

    Args:
        objective: Gets a Trial, returns the value. At the top level of a module or script, because each trial runs
            it in processes of its own.
        space: Parameters by name, with the fields of `spec.parameters` in sweep.yaml but `arg` and `env`: the
            objective reads `trial[NAME]`.
        direction: `minimize` or `maximize`.
        trials: Number of trials.
        parallel: Trials at once.
        ranks: Processes of a trial, with torchrun's environment.
        algorithm: Fields of `spec.algorithm`; tpe by default.
        pruner: Fields of `spec.pruner`; none by default.
        timeout_seconds: Seconds after which no further trial starts.
        step_deadline_seconds: Seconds without a report after which a trial is stopped, and fails.
        name: Of the search; by default that of the function.
        folder: Folder of the search; by default .dtj/sweeps/NAME.
        quiet: Whether events are not printed.

    Raises DtjError.
    """
    processes.require_linux()
    document = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": spec.KIND,
        "metadata": {"name": name or _name(objective)},
        "spec": {
            "objective": {"metric": METRIC, "direction": direction},
            "parameters": {each: {**fields} for each, fields in space.items()},
            "trials": trials,
            "parallel": parallel,
            "timeoutSeconds": timeout_seconds,
            "stepDeadlineSeconds": step_deadline_seconds,
            "algorithm": {**(algorithm or {})},
            "pruner": {**(pruner or {})},
            "job": _job(reference(objective), space, ranks),
        },
    }
    sweep = spec.parse(document, ORIGIN)
    _reject_places(sweep)
    render.check(sweep, ORIGIN)
    place = Path(folder or f".dtj/sweeps/{sweep.name}").absolute()
    with held(place):
        store = StudyStore(place / STORAGE, sweep)
        with open(os.devnull, "w") if quiet else contextlib.nullcontext(sys.stdout) as stream:
            view = PlainSweepView(stream)
            end = drive(sweep, limits_of(sweep, parallel), store, LocalTrialJobs(place, METRIC), place, view)
    if end.signal is not None:
        raise TuneStopped(f"stopped; the next call continues the search in {place}")
    best = end.state.best
    return Result(
        best_params=None if best is None else best.params,
        best_value=None if best is None else best.trial.value,
        best_trial=None if best is None else best.trial.number,
        trials=end.state.trials,
        folder=place,
    )


def reference(objective: Callable[..., Any]) -> str:
    """Returns the text by which another process finds the function. Raises InputError for one that it can't find."""
    qualified = getattr(objective, "__qualname__", "")
    if not qualified or "<" in qualified:
        raise InputError(f"{ORIGIN}: objective: must be a function at the top level of a module, not {objective!r}")
    if objective.__module__ != "__main__":
        return f"{objective.__module__}:{qualified}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise InputError(f"{ORIGIN}: objective: is in no file; move it into a module, and import it from there")
    return f"{Path(file).resolve()}:{qualified}"


def _reject_places(sweep: spec.SweepDocument) -> None:
    """Raises InputError for a parameter with a place in the command, which only a script of its own reads."""
    for name, parameter in sweep.spec.parameters.items():
        for field in ("arg", "env"):
            if getattr(parameter, field) is not None:
                raise InputError(f"{ORIGIN}: space: {name}.{field}: the objective reads trial[{name!r}]: omit it")


def _job(function: str, space: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    paths = [each for path in sys.path if path for each in (function_trial.PATH, os.path.abspath(path))]
    args = [function_trial.FUNCTION, function, function_trial.SPACE, json.dumps({k: dict(v) for k, v in space.items()})]
    return {
        "spec": {
            "processesPerPod": ranks,
            "image": "local",
            "backend": "gloo",
            "entrypoint": {
                "module": function_trial.__name__,
                "args": [*args, function_trial.METRIC, METRIC, *paths],
            },
            "checkpoint": {"volume": {"claimName": "trials"}},
        }
    }


def _name(objective: Callable[..., Any]) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", getattr(objective, "__name__", "").lower()).strip("-")
    return plain if plain and plain[0].isalpha() else "search"
