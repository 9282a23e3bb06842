"""The storage of a sweep: an Optuna study in an SQLite file, which is the truth about its trials.

One process writes, which holds the sweep's lock. Every write is one transaction, so that a kill at
any moment leaves a state from which the planner continues.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtj.errors import InputError, LocalRunError
from dtj.tune import pbt, spec
from dtj.tune.planner import Trial, TrialState
from dtj.tune.render import Value
from dtj.tune.spec import ChoiceParameter, FloatParameter, IntParameter, SweepDocument

try:
    import optuna
    import sqlalchemy.exc
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
except ModuleNotFoundError as error:
    raise InputError(
        f"{error.name} is not installed for {sys.executable}: dtj tune needs Optuna: pip install 'optuna>=5,<6'"
    ) from error

PRUNING, FAILURE, MESSAGE = "dtj:pruning", "dtj:failure", "dtj:message"  # user attributes of a trial
DOCUMENT, UID, BEGIN = "dtj:document", "dtj:uid", "dtj:begin"  # user attributes of the study
BUSY_SECONDS = 60.0
"""Time for which SQLite waits for a reader that holds the file, such as optuna-dashboard."""
CHANGEABLE = ("trials", "parallel", "maxRanks", "maxFailedTrials", "timeoutSeconds", "stepDeadlineSeconds", "pruner")
"""Fields that may change when a sweep continues. Others would make its trials incomparable."""
_SEED_STRIDE = 1_000_003  # a prime, so that sweeps with neighbouring seeds share no trial
_STATES = {
    optuna.trial.TrialState.RUNNING: TrialState.RUNNING,
    optuna.trial.TrialState.WAITING: TrialState.RUNNING,
    optuna.trial.TrialState.COMPLETE: TrialState.COMPLETE,
    optuna.trial.TrialState.PRUNED: TrialState.PRUNED,
    optuna.trial.TrialState.FAIL: TrialState.FAILED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """A trial with what people want to see of it."""

    trial: Trial
    params: dict[str, Value]
    values: dict[int, float]
    """Intermediate value by step."""
    message: str


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Reports an error of the storage in one line, as LocalRunError."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cause = error if isinstance(error, sqlalchemy.exc.SQLAlchemyError) else error.__cause__ or error
        raise LocalRunError(f"{path} can't be used as the sweep's storage: {cause.args[0]}") from error


class StudyStore:
    """Reads and writes the study. Raises InputError if the file holds another sweep than `sweep`."""

    def __init__(self, path: Path, sweep: SweepDocument) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep = sweep
        self._maximize = sweep.spec.objective.direction == "maximize"
        self._distributions = {name: _distribution(one) for name, one in sweep.spec.parameters.items()}
        with reported(path):
            storage = optuna.storages.get_storage(
                optuna.storages.RDBStorage(
                    f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": BUSY_SECONDS}}
                )
            )
            self._check_known(storage, path)
            self._study = optuna.create_study(
                storage=storage,
                study_name=sweep.name,
                direction=sweep.spec.objective.direction,
                pruner=_pruner(sweep),
                load_if_exists=True,
            )
            known = self._study.user_attrs
            for name, value in ((UID, uuid.uuid4().hex), (BEGIN, time.time())):
                if name not in known:
                    self._study.set_user_attr(name, value)
            self._study.set_user_attr(DOCUMENT, json.dumps(spec.written(sweep)))
            self.uid: str = self._study.user_attrs[UID]
            self.begin: float = self._study.user_attrs[BEGIN]

    def _check_known(self, storage: Any, path: Path) -> None:
        """Raises InputError if the file holds a sweep with another search, so that its trials can't be continued."""
        for study in optuna.get_all_study_summaries(storage, include_best_trial=False):
            before = study.user_attrs.get(DOCUMENT)
            if before is None:
                continue  # killed before it was written
            old, new = json.loads(before), spec.written(self._sweep)
            if study.study_name != self._sweep.name:
                raise InputError(f"{path} holds the sweep {study.study_name}: give another --dir")
            for field in sorted(old["spec"].keys() | new["spec"].keys()):
                if field not in CHANGEABLE and old["spec"].get(field) != new["spec"].get(field):
                    raise InputError(
                        f"spec.{field} differs from that of the sweep that {path.parent} holds: rename the sweep to "
                        "begin another one, or on this machine drop the old one with --fresh"
                    )

    # --- what is known ----------------------------------------------------------------------------

    def details(self) -> list[Details]:
        """Returns all trials by number."""
        return [self._details(frozen) for frozen in self._study.get_trials(deepcopy=False)]

    def _details(self, frozen: optuna.trial.FrozenTrial) -> Details:
        state = _STATES[frozen.state]
        seen = [value for value in frozen.intermediate_values.values() if math.isfinite(value)]
        trial = Trial(
            number=frozen.number,
            state=state,
            is_drawn=self._distributions.keys() <= frozen.params.keys(),
            is_pruning=PRUNING in frozen.user_attrs,
            failure=str(frozen.user_attrs.get(FAILURE, "")),
            last_step=frozen.last_step,
            best=(max if self._maximize else min)(seen, default=None),
            value=frozen.value if state is TrialState.COMPLETE else None,
        )
        message = str(frozen.user_attrs.get(MESSAGE, ""))
        return Details(
            trial=trial, params=dict(frozen.params), values=dict(frozen.intermediate_values), message=message
        )

    def origin(self, number: int) -> pbt.Origin | None:
        """Returns the trial whose checkpoint this one starts from; None unless pbt has begun a second generation."""
        algorithm = self._sweep.spec.algorithm
        if algorithm.population is None:
            return None
        trials = [self._details(frozen).trial for frozen in self._study.get_trials(deepcopy=False)]
        return pbt.origin(number, trials, population=algorithm.population, seed=algorithm.seed, maximize=self._maximize)

    def params(self, number: int) -> dict[str, Value]:
        """Returns the parameters of a trial, all of which were drawn."""
        return dict(self._frozen(number).params)

    def importance(self) -> dict[str, float]:
        """Returns the share of each parameter in the spread of the results; {} while too few trials are complete."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of too few trials
                return dict(optuna.importance.get_param_importances(self._study))
        except (ValueError, RuntimeError):  # too few complete trials, or all of them have one value
            return {}

    # --- what is written --------------------------------------------------------------------------

    def ask(self, number: int | None) -> int:
        """Creates the next trial and draws its parameters, or draws those that trial `number` lacks."""
        upcoming = len(self._study.get_trials(deepcopy=False)) if number is None else number
        self._study.sampler = self._sampler(upcoming)
        if number is None:
            return self._study.ask(self._distributions).number
        trial = optuna.trial.Trial(self._study, self._frozen(number)._trial_id)
        for name, distribution in self._distributions.items():
            _suggest(trial, name, distribution)
        return number

    def report(self, number: int, step: int, value: float) -> bool:
        """Writes an intermediate value. Returns whether the pruner has decided against the trial, and then marks it."""
        trial = optuna.trial.Trial(self._study, self._frozen(number)._trial_id)
        trial.report(value, step)
        if not trial.should_prune():
            return False
        trial.set_user_attr(PRUNING, step)
        return True

    def give_up(self, number: int, message: str) -> None:
        """Marks a trial that is to fail once its job has stopped."""
        self._study._storage.set_trial_user_attr(self._frozen(number)._trial_id, FAILURE, message)

    def tell(self, number: int, state: TrialState, value: float | None, message: str) -> None:
        """Writes the end of a trial."""
        if message:
            self._study._storage.set_trial_user_attr(self._frozen(number)._trial_id, MESSAGE, message)
        known = {one: theirs for theirs, one in _STATES.items()}
        self._study.tell(number, value, state=known[state], skip_if_finished=True)

    def _frozen(self, number: int) -> optuna.trial.FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Returns a sampler whose seed depends on the trial, so that a continued sweep repeats no random numbers."""
        algorithm = self._sweep.spec.algorithm
        if algorithm.name == "tpe":
            seed = (algorithm.seed * _SEED_STRIDE + number) % 2**32
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=algorithm.startup_trials)
        origin = self.origin(number)
        before = {} if origin is None else self.params(origin.number)
        return _Sampler(self._sweep, number, before, is_changed=origin is not None and origin.is_changed)


class _Sampler(optuna.samplers.BaseSampler):
    """Draws each parameter by random numbers of its own, so that a trial that was half drawn gets the same values.

    With pbt, `before` are the parameters of the trial that this one starts from.
    """

    def __init__(self, sweep: SweepDocument, number: int, before: dict[str, Value], *, is_changed: bool) -> None:
        self._sweep = sweep
        self._number = number
        self._before = before
        self._is_changed = is_changed

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution
    ) -> Value | None:
        dice = random.Random(f"{self._sweep.spec.algorithm.seed}/{self._number}/{param_name}")
        kept = self._before.get(param_name)
        if kept is not None and self._is_changed:
            kept = pbt.changed(kept, self._sweep.spec.parameters[param_name], dice)
        if kept is not None:
            return kept
        sampler = optuna.samplers.RandomSampler(seed=dice.getrandbits(32))
        return sampler.sample_independent(study, trial, param_name, param_distribution)  # type: ignore[no-any-return]


def _pruner(sweep: SweepDocument) -> optuna.pruners.BasePruner:
    wanted = sweep.spec.pruner
    if wanted.name == "median":
        return optuna.pruners.MedianPruner(
            n_startup_trials=wanted.startup_trials, n_warmup_steps=wanted.min_steps, n_min_trials=1
        )
    if wanted.name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=wanted.min_steps, reduction_factor=wanted.reduction_factor
        )
    if wanted.name == "hyperband":
        assert wanted.max_steps is not None
        return optuna.pruners.HyperbandPruner(
            min_resource=wanted.min_steps, max_resource=wanted.max_steps, reduction_factor=wanted.reduction_factor
        )
    return optuna.pruners.NopPruner()


def _distribution(parameter: FloatParameter | IntParameter | ChoiceParameter) -> BaseDistribution:
    if isinstance(parameter, ChoiceParameter):
        return CategoricalDistribution(parameter.values)
    if isinstance(parameter, IntParameter):
        return IntDistribution(parameter.min, parameter.max, log=parameter.log, step=parameter.step or 1)
    return FloatDistribution(parameter.min, parameter.max, log=parameter.log, step=parameter.step)


def _suggest(trial: optuna.trial.Trial, name: str, distribution: BaseDistribution) -> None:
    """Draws a parameter, or leaves the value that it has."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    elif isinstance(distribution, FloatDistribution):
        trial.suggest_float(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
