"""The loop of a sweep: read the storage, observe the jobs, plan, execute, until the sweep has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dtj.tune import planner, render
from dtj.tune.jobs import TrialJobs
from dtj.tune.planner import (
    Action,
    Ask,
    Export,
    Finish,
    GiveUp,
    Job,
    JobState,
    Limits,
    Report,
    Start,
    Stop,
    Sweep,
    Tell,
    TrialState,
)
from dtj.tune.spec import SweepDocument
from dtj.tune.study import Details, StudyStore

GAP_SECONDS = 60.0
"""Time between two looks from which on the machine is taken to have slept, so that no trial was seen to stand still."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A sweep at one moment, for views and pages."""

    sweep: SweepDocument
    trials: Sequence[Details]
    jobs: Mapping[int, Job]
    limits: Limits
    seconds: float
    """Since the begin of the sweep, interruptions included."""

    @property
    def best(self) -> Details | None:
        """The complete trial with the best value."""
        best = planner.best_of([one.trial for one in self.trials], maximize=self.limits.maximize)
        return None if best is None else self.trials[best.number]

    def count(self, state: TrialState) -> int:
        """Returns how many trials have this state."""
        return sum(one.trial.state is state for one in self.trials)


class Observer(Protocol):
    """Is shown what happens."""

    def show(self, state: State) -> None:
        """Shows the current state instead of the previous one."""

    def event(self, text: str) -> None:
        """Shows one line that stays."""


class Engine:
    """Executes the plans of a sweep."""

    def __init__(self, sweep: SweepDocument, limits: Limits, store: StudyStore, jobs: TrialJobs) -> None:
        self._sweep = sweep
        self._limits = limits
        self._store = store
        self._jobs = jobs
        self._exported: int | None = None
        self.stop = threading.Event()
        """Is set to stop all trials gracefully, and to leave them for the next `dtj tune`."""

    def state(self) -> State:
        """Returns the current state."""
        trials = self._store.details()
        running = [one.trial.number for one in trials if one.trial.state is TrialState.RUNNING]
        return State(
            sweep=self._sweep,
            trials=trials,
            jobs=self._jobs.observe(running),
            limits=self._limits,
            seconds=time.time() - self._store.begin,
        )

    def run(self, observer: Observer) -> str:
        """Runs until the end of the sweep, or until `stop` is set and all trials have stopped. Returns the reason."""
        looked = watched = time.time()
        paused: set[int] = set()
        while True:
            if time.time() - looked > GAP_SECONDS + self._jobs.look_seconds:
                watched = time.time()
            looked = time.time()
            state = self.state()
            observer.show(state)
            before, paused = paused, {n for n, job in state.jobs.items() if job.state is JobState.PAUSED}
            for number in sorted(paused - before):
                observer.event(f"trial {number} waits: {state.jobs[number].message}")
            stopping = self.stop.is_set()
            actions = planner.plan(
                Sweep(
                    trials=[one.trial for one in state.trials],
                    jobs=state.jobs,
                    limits=self._limits,
                    now=looked,
                    watched_since=watched,
                    is_stopping=stopping,
                    exported=self._exported,
                )
            )
            for action in actions:
                if isinstance(action, Finish):
                    return action.reason
                self._execute(action, state, observer)
            if any(isinstance(action, Ask | GiveUp | Tell) for action in actions):
                continue  # the next plan has more to do at once
            if stopping:
                time.sleep(self._jobs.look_seconds)
            else:
                self.stop.wait(self._jobs.look_seconds)

    def _execute(self, action: Action, state: State, observer: Observer) -> None:
        if isinstance(action, Ask):
            self._store.ask(action.number)
        elif isinstance(action, Start):
            again = action.number in state.jobs
            self._jobs.start(action.number, self._job(action.number))
            observer.event(f"trial {action.number} {'continues' if again else self._beginning(action.number)}")
        elif isinstance(action, Report):
            is_active = state.jobs[action.number].state is JobState.ACTIVE
            if self._store.report(action.number, action.step, action.value) and is_active:
                observer.event(f"trial {action.number} lags behind at step {action.step}: stopping it")
        elif isinstance(action, GiveUp):
            self._store.give_up(action.number, action.message)
            observer.event(f"trial {action.number}: {action.message}: stopping it")
        elif isinstance(action, Stop):
            self._jobs.stop(action.number, self._job(action.number))
        elif isinstance(action, Tell):
            self._store.tell(action.number, action.state, action.value, action.message)
            metric = self._sweep.spec.objective.metric
            value = "" if action.value is None else f": {metric} {action.value:.6g}"
            reason = f": {action.message}" if action.message else ""
            observer.event(f"trial {action.number} {action.state.value}{value}{reason}")
        elif isinstance(action, Export):
            best = state.trials[action.number]
            details = {
                "sweep": self._sweep.name,
                "trial": action.number,
                "job": render.job_name(self._sweep.name, action.number),
                "metric": self._sweep.spec.objective.metric,
                "value": best.trial.value,
                "parameters": best.params,
            }
            self._jobs.export(action.number, self._job(action.number), details)
            self._exported = action.number

    def _job(self, number: int) -> dict[str, object]:
        origin = self._store.origin(number)
        begins_at = None if origin is None else origin.number
        return render.trial_job(self._sweep, number, self._store.params(number), begins_at=begins_at)

    def _beginning(self, number: int) -> str:
        origin = self._store.origin(number)
        if origin is None:
            return "starts"
        return f"starts from trial {origin.number}" + (" with changed parameters" if origin.is_changed else "")
