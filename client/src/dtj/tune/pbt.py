"""Population based training: where a trial of a later generation starts, and with which parameters. Pure.

A generation is `population` trials, each of which trains `stepsPerGeneration` steps further than the generation
before. The next generation begins once all of them have ended, so that it depends on their results alone, in
whatever order these came and however often the sweep was killed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dtj.tune.planner import Trial, TrialState
from dtj.tune.render import Value
from dtj.tune.spec import ChoiceParameter, FloatParameter, IntParameter

SHARE = 4
"""One in so many members of a generation is replaced by one of as many best ones."""
NEW_SHARE = 0.25
"""Probability with which a parameter of a replaced member is drawn as in the first generation."""
FACTORS = (0.8, 1.25)
"""Factors of a parameter that is searched by its logarithm."""
TENTH = 0.1
"""Share of its range by which another number changes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The trial whose checkpoint a trial starts from."""

    number: int
    is_changed: bool
    """Whether the parameters of that trial are changed. Otherwise the member trains on with its own."""


def origin(number: int, trials: Sequence[Trial], *, population: int, seed: int, maximize: bool) -> Origin | None:
    """Returns where a trial starts, or None in the first generation, and where no trial of the one before has a value.

    `trials`: all trials by number, of which those of the generation before have ended.
    """
    first = (number // population - 1) * population
    if first < 0:
        return None
    sign = -1 if maximize else 1
    before = trials[first : first + population]
    order = sorted(
        (trial for trial in before if trial.state is TrialState.COMPLETE and trial.value is not None),
        key=lambda trial: (sign * (trial.value or 0.0), trial.number),
    )
    if not order:
        return None
    replaced = max(1, population // SHARE)
    kept = [trial.number for trial in order[: max(1, population - replaced)]]
    own = number - population
    if own in kept:
        return Origin(own, is_changed=False)
    best = kept[:replaced]
    return Origin(random.Random(f"{seed}/{number}").choice(best), is_changed=True)


def changed(
    value: Value, parameter: FloatParameter | IntParameter | ChoiceParameter, dice: random.Random
) -> Value | None:
    """Returns a value near `value`, or None if it is to be drawn as in the first generation."""
    if dice.random() < NEW_SHARE:
        return None
    if isinstance(parameter, ChoiceParameter):
        return value
    assert not isinstance(value, str)
    up = dice.random() < 0.5
    if parameter.log:
        found = value * FACTORS[up]
    else:
        found = value + (1 if up else -1) * TENTH * (parameter.max - parameter.min)
    if isinstance(parameter, IntParameter):
        step = parameter.step or 1
        found = found if abs(found - value) >= step else value + (step if up else -step)
        found = parameter.min + round((found - parameter.min) / step) * step
        highest = parameter.min + (parameter.max - parameter.min) // step * step
        return min(max(found, parameter.min), highest)
    if parameter.step is not None:
        found = found if abs(found - value) >= parameter.step else value + (1 if up else -1) * parameter.step
        cells = round((found - parameter.min) / parameter.step)
        most = int((parameter.max - parameter.min) / parameter.step + 1e-9)
        return parameter.min + min(max(cells, 0), most) * parameter.step
    return min(max(found, parameter.min), parameter.max)
