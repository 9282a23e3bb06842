"""The planner of a sweep: a table of situations, and a simulated sweep that is killed at any moment."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dtj.tune.planner import (
    MAX_FRUITLESS,
    STALLED_TEXT,
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
    Trial,
    TrialState,
    plan,
)

LIMITS = Limits(trials=4, parallel=2)
DONE = Trial(number=0, state=TrialState.COMPLETE, value=1.0)
RUNNING = Trial(number=0)
ACTIVE = Job(state=JobState.ACTIVE)
STEPPING = replace(LIMITS, trials=1, step_seconds=60.0)
STALLED = STALLED_TEXT.format(60)
FULL = [replace(DONE, number=n, value=float(n)) for n in range(4)]

TABLE: dict[str, tuple[Sweep, list[Action]]] = {
    "an empty sweep asks for as many trials as may run": (Sweep(trials=[], limits=LIMITS), [Ask(), Ask()]),
    "asks for no more trials than are left": (
        Sweep(trials=FULL[:3], limits=LIMITS, exported=0), [Ask()],
    ),
    "a trial without job starts": (Sweep(trials=[RUNNING], limits=LIMITS), [Start(0), Ask()]),
    "a half-drawn trial is drawn first, and takes room": (
        Sweep(trials=[Trial(number=0, is_drawn=False)], limits=LIMITS), [Ask(0), Ask()],
    ),
    "a full budget asks for nothing": (
        Sweep(trials=[RUNNING, Trial(number=1)], jobs={0: ACTIVE, 1: ACTIVE}, limits=LIMITS), [],
    ),
    "trials beyond the budget wait": (
        Sweep(trials=[RUNNING, Trial(number=1), Trial(number=2)], jobs={0: ACTIVE}, limits=LIMITS), [Start(1)],
    ),
    "a killed job continues": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.STOPPED)}, limits=LIMITS), [Start(0), Ask()],
    ),
    "a job that somebody else has stopped waits for them, and keeps its room": (
        Sweep(trials=[RUNNING, Trial(number=1)], jobs={0: Job(state=JobState.PAUSED)}, limits=LIMITS), [Start(1)],
    ),
    "a closed sweep waits for a job that somebody else has stopped": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.PAUSED)}, limits=replace(LIMITS, trials=1)), [],
    ),
    "a marked trial that somebody else has stopped is pruned": (
        Sweep(trials=[replace(RUNNING, is_pruning=True)], jobs={0: Job(state=JobState.PAUSED)}, limits=LIMITS),
        [Tell(0, TrialState.PRUNED), Ask()],
    ),
    "a stop does not wait for a job that somebody else has stopped": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.PAUSED)}, limits=LIMITS, is_stopping=True),
        [Finish("stopped")],
    ),
    "a job that never gets anywhere fails": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.STOPPED, fruitless=MAX_FRUITLESS)}, limits=LIMITS),
        [Tell(0, TrialState.FAILED, message="its job ended 10 times in a row without an outcome and without a new "
              "step; its output shows why"), Ask(), Ask()],
    ),
    "a new step is reported": (
        Sweep(trials=[RUNNING, Trial(number=1)], limits=LIMITS,
              jobs={0: Job(state=JobState.ACTIVE, step=5, value=0.5), 1: ACTIVE}), [Report(0, 5, 0.5)],
    ),
    "a step that was reported before is not": (
        Sweep(trials=[replace(RUNNING, last_step=9), Trial(number=1)], limits=LIMITS,
              jobs={0: Job(state=JobState.ACTIVE, step=5, value=0.5), 1: ACTIVE}), [],
    ),
    "a value that is no number is not reported": (
        Sweep(trials=[RUNNING, Trial(number=1)], limits=LIMITS,
              jobs={0: Job(state=JobState.ACTIVE, step=5, value=float("nan")), 1: ACTIVE}), [],
    ),
    "a marked trial stops, and keeps its room meanwhile": (
        Sweep(trials=[replace(RUNNING, is_pruning=True), Trial(number=1)], jobs={0: ACTIVE, 1: ACTIVE}, limits=LIMITS),
        [Stop(0)],
    ),
    "a marked trial that has stopped is pruned": (
        Sweep(trials=[replace(RUNNING, is_pruning=True)], jobs={0: Job(state=JobState.STOPPED)}, limits=LIMITS),
        [Tell(0, TrialState.PRUNED), Ask(), Ask()],
    ),
    "a marked trial whose job is gone is pruned, not started": (
        Sweep(trials=[replace(RUNNING, is_pruning=True)], limits=LIMITS),
        [Tell(0, TrialState.PRUNED), Ask(), Ask()],
    ),
    "a marked trial that completed before it was stopped counts": (
        Sweep(trials=[replace(RUNNING, is_pruning=True)], limits=LIMITS,
              jobs={0: Job(state=JobState.COMPLETE, step=9, value=0.1)}),
        [Tell(0, TrialState.COMPLETE, 0.1), Ask(), Ask()],
    ),
    "a complete job reports its last step, then its value": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.COMPLETE, step=9, value=0.1)}, limits=LIMITS),
        [Report(0, 9, 0.1), Tell(0, TrialState.COMPLETE, 0.1), Ask(), Ask()],
    ),
    "a complete job without a value fails": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.COMPLETE, message="no metric")}, limits=LIMITS),
        [Tell(0, TrialState.FAILED, message="no metric"), Ask(), Ask()],
    ),
    "the best intermediate value counts where that is asked for": (
        Sweep(trials=[replace(RUNNING, best=0.9, last_step=9)], limits=replace(LIMITS, maximize=True, take_best=True),
              jobs={0: Job(state=JobState.COMPLETE, step=9, value=0.5)}),
        [Tell(0, TrialState.COMPLETE, 0.9), Ask(), Ask()],
    ),
    "a failed job fails its trial": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.FAILED, message="ImportFailed")}, limits=LIMITS),
        [Tell(0, TrialState.FAILED, message="ImportFailed"), Ask(), Ask()],
    ),
    "too many failures close the sweep": (
        Sweep(trials=[replace(DONE, state=TrialState.FAILED)], limits=replace(LIMITS, max_failed=1)),
        [Finish("1 trials have failed (spec.maxFailedTrials)")],
    ),
    "running trials end before a closed sweep does": (
        Sweep(trials=[replace(DONE, state=TrialState.FAILED), Trial(number=1)], jobs={1: ACTIVE},
              limits=replace(LIMITS, max_failed=1)), [],
    ),
    "after the deadline no trial is created, and a stopped one still continues": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.STOPPED)}, limits=replace(LIMITS, deadline=5.0), now=5.0),
        [Start(0)],
    ),
    "a trial whose ranks run without a new step is given up": (
        Sweep(trials=[RUNNING], jobs={0: replace(ACTIVE, since=40.0)}, limits=STEPPING, now=100.0),
        [GiveUp(0, STALLED)],
    ),
    "a trial that has just done a step is not given up": (
        Sweep(trials=[RUNNING], jobs={0: replace(ACTIVE, since=41.0)}, limits=STEPPING, now=100.0), [],
    ),
    "a trial in a queue is not given up": (Sweep(trials=[RUNNING], jobs={0: ACTIVE}, limits=STEPPING, now=9e9), []),
    "a tuner that has just begun to look gives nothing up": (
        Sweep(trials=[RUNNING], jobs={0: replace(ACTIVE, since=40.0)}, limits=STEPPING, now=100.0, watched_since=99.0),
        [],
    ),
    "a trial that was given up stops, and reports nothing": (
        Sweep(trials=[replace(RUNNING, failure="still")], limits=STEPPING, now=100.0,
              jobs={0: Job(state=JobState.ACTIVE, step=5, value=0.5, since=40.0)}), [Stop(0)],
    ),
    "a trial that was given up fails once its job has stopped": (
        Sweep(trials=[replace(RUNNING, failure="still")], jobs={0: Job(state=JobState.STOPPED)}, limits=STEPPING),
        [Tell(0, TrialState.FAILED, message="still")],
    ),
    "a trial that was given up and completes before it is stopped counts": (
        Sweep(trials=[replace(RUNNING, failure="still")], limits=STEPPING,
              jobs={0: Job(state=JobState.COMPLETE, value=0.1)}), [Tell(0, TrialState.COMPLETE, 0.1)],
    ),
    "a stop of the sweep gives nothing up": (
        Sweep(trials=[RUNNING], jobs={0: replace(ACTIVE, since=40.0)}, limits=STEPPING, now=100.0, is_stopping=True),
        [Stop(0)],
    ),
    "a generation is asked for as far as there is room": (
        Sweep(trials=[DONE], limits=replace(LIMITS, trials=6, generation=3), exported=0), [Ask(), Ask()],
    ),
    "the next generation waits for the last trial of this one": (
        Sweep(trials=[*FULL[:2], Trial(number=2)], jobs={2: ACTIVE}, limits=replace(LIMITS, trials=6, generation=3),
              exported=0), [],
    ),
    "the next generation begins when all trials of this one have ended": (
        Sweep(trials=FULL[:3], limits=replace(LIMITS, trials=6, generation=3), exported=0), [Ask(), Ask()],
    ),
    "the last generation may be smaller": (
        Sweep(trials=FULL[:3], limits=replace(LIMITS, generation=3), exported=0), [Ask()],
    ),
    "the best trial is exported once": (
        Sweep(trials=FULL, limits=LIMITS), [Export(0)],
    ),
    "the best of a maximizing sweep": (
        Sweep(trials=FULL, limits=replace(LIMITS, maximize=True), exported=0), [Export(3)],
    ),
    "the end": (Sweep(trials=FULL, limits=LIMITS, exported=0), [Finish("all 4 trials are finished")]),
    "a stop asks every active job to stop, and starts nothing": (
        Sweep(trials=[RUNNING, Trial(number=1)], jobs={0: ACTIVE, 1: Job(state=JobState.STOPPED)}, limits=LIMITS,
              is_stopping=True), [Stop(0)],
    ),
    "a stop ends when nothing is active, and leaves the trials open": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.STOPPED)}, limits=LIMITS, is_stopping=True),
        [Finish("stopped")],
    ),
    "a stop writes the end of a job that completed": (
        Sweep(trials=[RUNNING], jobs={0: Job(state=JobState.COMPLETE, value=1.0)}, limits=LIMITS, is_stopping=True),
        [Tell(0, TrialState.COMPLETE, 1.0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sweep", "actions"), TABLE.values(), ids=TABLE.keys())
def test_plan(sweep: Sweep, actions: list[Action]) -> None:
    assert plan(sweep) == actions


NOW = 100.0


class World:
    """A storage and jobs that outlive the tuner. `steps` of a job pass at any time."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self.random = random.Random(seed)
        self.limits = limits
        self.trials: dict[int, Trial] = {}
        self.jobs: dict[int, Job] = {}
        self.exported: int | None = None
        self.created: list[int] = []
        self.most_active = 0

    def execute(self, action: Action) -> bool:
        """Executes one action as the engine does. Returns whether the sweep is at its end."""
        if isinstance(action, Ask):
            number = len(self.trials) if action.number is None else action.number
            if size := self.limits.generation:
                before = [self.trials[n] for n in range(number // size * size)]
                assert all(trial.state is not TrialState.RUNNING for trial in before), "a generation began too early"
            # A kill between the two writes leaves the trial without parameters.
            self.trials[number] = Trial(number=number, is_drawn=self.random.random() < 0.8)
        elif isinstance(action, Start):
            if action.number not in self.jobs:
                self.created.append(action.number)
            self.jobs[action.number] = replace(self.jobs.get(action.number, Job()), state=JobState.ACTIVE)
        elif isinstance(action, Report):
            trial = self.trials[action.number]
            self.trials[action.number] = replace(trial, last_step=action.step, is_pruning=self.random.random() < 0.2)
        elif isinstance(action, GiveUp):
            self.trials[action.number] = replace(self.trials[action.number], failure=action.message)
        elif isinstance(action, Stop):
            if self.random.random() < 0.7:
                self.jobs[action.number] = replace(self.jobs[action.number], state=JobState.STOPPED)
        elif isinstance(action, Tell):
            trial = self.trials[action.number]
            assert trial.state is TrialState.RUNNING, "a trial ends once"
            self.trials[action.number] = replace(trial, state=action.state, value=action.value)
        elif isinstance(action, Export):
            self.exported = action.number
        return isinstance(action, Finish)

    def pass_time(self) -> None:
        for number, job in self.jobs.items():
            if job.state is JobState.ACTIVE:
                step = (job.step or 0) + 1
                ends = [JobState.ACTIVE] * 6 + [JobState.STOPPED, JobState.FAILED, JobState.COMPLETE, JobState.COMPLETE]
                since = self.random.choice([None, 0.0, NOW])
                self.jobs[number] = Job(
                    state=self.random.choice(ends), step=step, value=self.random.random(), since=since
                )
        self.most_active = max(self.most_active, sum(job.state is JobState.ACTIVE for job in self.jobs.values()))

    def run_until_killed(self) -> bool:
        """Plans and executes until the end, or until the tuner is killed between two writes."""
        while True:
            for action in plan(Sweep(trials=list(self.trials.values()), jobs=dict(self.jobs), limits=self.limits,
                                     now=NOW, exported=self.exported)):  # fmt: skip
                if self.execute(action):
                    return True
                if self.random.random() < 0.05:
                    return False
            self.pass_time()


@pytest.mark.parametrize("seed", range(100))
def test_a_sweep_killed_at_any_write_has_each_trial_once(seed: int) -> None:
    generation = 4 if seed % 2 else None
    world = World(seed, Limits(trials=12, parallel=3, step_seconds=60.0, generation=generation))
    for _ in range(1000):
        if world.run_until_killed():
            break
    else:
        pytest.fail("the sweep does not end")
    assert sorted(world.trials) == list(range(12))
    assert all(trial.state is not TrialState.RUNNING for trial in world.trials.values())
    assert sorted(world.created) == sorted(set(world.created)), "a job was created twice"
    assert set(world.jobs) == set(range(12))
    assert 0 < world.most_active <= 3
