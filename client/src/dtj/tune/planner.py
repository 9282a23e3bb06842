"""Decides the next actions of a sweep. Pure: storage, jobs and clock are arguments, and nothing is kept.

A trial in the storage is either finished, or it has a job. After a kill, the same storage and the same
jobs lead to the same actions, so that no trial is lost or doubled.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

MAX_FRUITLESS = 10
"""Starts in a row of a trial's job that ended without an outcome, and without a step beyond those of earlier starts."""
STALLED_TEXT = "no new step for {:.0f} s while its ranks ran (spec.stepDeadlineSeconds)"
NO_JOB_TEXT = "its job ended {} times in a row without an outcome and without a new step; its output shows why"


class TrialState(enum.Enum):
    """State of a trial in the storage."""

    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


class JobState(enum.Enum):
    """State of a trial's job."""

    ABSENT = "absent"
    """Never created."""
    ACTIVE = "active"
    """Runs, or is being stopped."""
    STOPPED = "stopped"
    """Ended without an outcome: stopped, or killed. Continues from its checkpoint."""
    PAUSED = "paused"
    """Stopped by someone else than the tuner, who alone continues it. Keeps its room meanwhile."""
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial, as the storage has it."""

    number: int
    state: TrialState = TrialState.RUNNING
    is_drawn: bool = True
    """Whether the trial has a value for each parameter. A kill while they were drawn leaves it without some."""
    is_pruning: bool = False
    """Whether the pruner has decided against the trial. The mark is written before its job is stopped."""
    failure: str = ""
    """Why the trial fails although its job has no outcome. This mark, too, is written before its job is stopped."""
    last_step: int | None = None
    """Step of the last intermediate value."""
    best: float | None = None
    """Best intermediate value."""
    value: float | None = None
    """Final value of a complete trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A trial's job, as it is observed."""

    state: JobState = JobState.ABSENT
    step: int | None = None
    value: float | None = None
    """Value of the objective's metric at `step`."""
    message: str = ""
    """Why the job failed, or is paused."""
    since: float | None = None
    """Time of the last step, or of the start after it. None: the ranks do not run, such as in a queue."""
    fruitless: int = 0
    """Starts in a row without an outcome and without a new step, while it is STOPPED."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of a sweep."""

    trials: int
    parallel: int
    """Trials at once: the smaller one of spec.parallel and what spec.maxRanks leaves room for."""
    maximize: bool = False
    take_best: bool = False
    """Whether a trial counts with its best intermediate value instead of its last value."""
    max_failed: int | None = None
    """Failed trials after which no further trial starts."""
    deadline: float | None = None
    """Time after which no further trial starts."""
    step_seconds: float | None = None
    """Seconds without a new step after which a trial whose ranks run is stopped, and fails."""
    generation: int | None = None
    """Trials of a generation, which begins when all trials of the one before have ended. None: no generations."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Create the next trial and draw its parameters. `number` is set if that trial exists and lacks some."""

    number: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Create the trial's job, or continue it."""

    number: int


@dataclass(frozen=True, slots=True)
class Report:
    """Write an intermediate value, ask the pruner, and mark the trial if the pruner decides against it."""

    number: int
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Mark a trial whose job stands still, so that the trial fails."""

    number: int
    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the trial's job gracefully. Repeated until the job has stopped."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Write the trial's end."""

    number: int
    state: Literal[TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED]
    value: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """Copy the checkpoint of the best trial so far."""

    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the sweep."""

    reason: str


Action = Ask | Start | Report | GiveUp | Stop | Tell | Export | Finish


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """All that a decision depends on."""

    trials: Sequence[Trial]
    jobs: Mapping[int, Job] = field(default_factory=dict)
    """Jobs of the running trials by number; a trial without an entry has none."""
    limits: Limits
    now: float = 0.0
    watched_since: float = 0.0
    """Time since which the jobs have been looked at without a gap, as the tuner's own machine may have slept."""
    is_stopping: bool = False
    """Whether the user has asked to stop."""
    exported: int | None = None
    """The trial whose checkpoint was copied last."""


def plan(sweep: Sweep) -> list[Action]:
    """Returns the next actions, in order. Executing an action again does no harm."""
    actions: list[Action] = []
    running = [trial for trial in sorted(sweep.trials, key=lambda t: t.number) if trial.state is TrialState.RUNNING]
    states = [sweep.jobs.get(trial.number, Job()).state for trial in running]
    active = states.count(JobState.ACTIVE)
    room = sweep.limits.parallel - active - states.count(JobState.PAUSED)
    for trial in running:
        job = sweep.jobs.get(trial.number, Job())
        if not trial.is_drawn:
            if not sweep.is_stopping:
                actions.append(Ask(trial.number))
                room -= 1
            continue
        actions += _report(trial, job)
        if (end := _end(trial, job, sweep.limits)) is not None:
            actions.append(end)
        elif job.state is JobState.ACTIVE:
            if trial.is_pruning or trial.failure or sweep.is_stopping:
                actions.append(Stop(trial.number))
            elif (message := _stalled(job, sweep)) is not None:
                actions.append(GiveUp(trial.number, message))
        elif job.state is not JobState.PAUSED and not sweep.is_stopping and room > 0:
            actions.append(Start(trial.number))
            room -= 1
    if sweep.is_stopping:
        best = _best(sweep)
        if best is not None and best != sweep.exported:
            actions.append(Export(best))
        if not active and not any(isinstance(action, Tell) for action in actions):
            actions.append(Finish("stopped"))
        return actions
    ending = sum(isinstance(action, Tell) and action.state is TrialState.FAILED for action in actions)
    closed = _closed(sweep, ending)
    if closed is None:
        actions += [Ask()] * max(0, min(room, _left(sweep, bool(running))))
    best = _best(sweep)
    if best is not None and best != sweep.exported:
        actions.append(Export(best))
    if closed is not None and not running and not actions:
        actions.append(Finish(closed))
    return actions


def final_value(trial: Trial, job: Job, limits: Limits) -> float | None:
    """Returns the value that a trial counts with at the end of its job, or None if the job reported none."""
    found = [value for value in (job.value, trial.best if limits.take_best else None) if value is not None]
    found = [value for value in found if math.isfinite(value)]
    if not found:
        return None
    return max(found) if limits.maximize else min(found)


def best_of(trials: Sequence[Trial], *, maximize: bool) -> Trial | None:
    """Returns the complete trial with the best value, of equal ones the first."""
    found = [trial for trial in trials if trial.state is TrialState.COMPLETE and trial.value is not None]
    sign = -1 if maximize else 1
    return min(found, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def _best(sweep: Sweep) -> int | None:
    best = best_of(sweep.trials, maximize=sweep.limits.maximize)
    return None if best is None else best.number


def _report(trial: Trial, job: Job) -> Iterator[Report]:
    """Yields the value of a step beyond the last one; after a recovery, the same steps come again."""
    if trial.is_pruning or trial.failure or job.step is None or job.value is None or not math.isfinite(job.value):
        return
    if trial.last_step is None or job.step > trial.last_step:
        yield Report(trial.number, job.step, job.value)


def _end(trial: Trial, job: Job, limits: Limits) -> Tell | None:
    """Returns the end of a trial whose job has ended, or None if the job is active, or is to start or to continue."""
    number = trial.number
    if job.state is JobState.COMPLETE:
        value = final_value(trial, job, limits)
        if value is not None:
            return Tell(number, TrialState.COMPLETE, value)
        return Tell(number, TrialState.FAILED, message=job.message or "completed without a value of the objective")
    if job.state is JobState.ACTIVE:
        return None
    if trial.failure:
        return Tell(number, TrialState.FAILED, message=trial.failure)
    if trial.is_pruning:  # stopped, failed while it was stopped, or never begun
        return Tell(number, TrialState.PRUNED)
    if job.state is JobState.FAILED:
        return Tell(number, TrialState.FAILED, message=job.message)
    if job.state is JobState.STOPPED and job.fruitless >= MAX_FRUITLESS:
        return Tell(number, TrialState.FAILED, message=NO_JOB_TEXT.format(job.fruitless))
    return None


def _stalled(job: Job, sweep: Sweep) -> str | None:
    """Returns why an active job stands still, or None if it does not."""
    limit = sweep.limits.step_seconds
    if limit is None or job.since is None or sweep.now - max(job.since, sweep.watched_since) < limit:
        return None
    return STALLED_TEXT.format(limit)


def _left(sweep: Sweep, is_any_running: bool) -> int:
    """Returns how many trials may be created beside those that exist."""
    left, size = sweep.limits.trials - len(sweep.trials), sweep.limits.generation
    if size is None:
        return left
    begun = len(sweep.trials) % size
    if begun == 0 and is_any_running:
        return 0  # the next generation depends on the results of this one
    return min(left, size - begun)


def _closed(sweep: Sweep, ending: int) -> str | None:
    """Returns why no further trial is created, or None if one may be. `ending`: trials that fail by this plan."""
    limits = sweep.limits
    failed = ending + sum(trial.state is TrialState.FAILED for trial in sweep.trials)
    if len(sweep.trials) >= limits.trials:
        return f"all {limits.trials} trials are finished"
    if limits.max_failed is not None and failed >= limits.max_failed:
        return f"{failed} trials have failed (spec.maxFailedTrials)"
    if limits.deadline is not None and sweep.now >= limits.deadline:
        return "the time is over (spec.timeoutSeconds)"
    return None
