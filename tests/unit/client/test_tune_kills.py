"""A sweep that is killed at random moments has the trials and results of an undisturbed one.

Each tuner is a fork of the test, which has imported everything, so that kills hit the sweep instead of imports.
DTJ_TUNE_KILLS sets the number of kills with real jobs, DTJ_TUNE_LONGEST the seconds before a kill, and DTJ_TUNE_SEED
the moments.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.engine import Engine as SqlEngine

from dtj.main import main
from dtj.tune import driver, engine, spec, study
from dtj.tune.planner import Job, JobState
from dtj_core.plan.model import Object
from tests.unit.client.sweeps import LONG, TuneRun, sweep

KILLS = int(os.environ.get("DTJ_TUNE_KILLS", "5"))
LONGEST = float(os.environ.get("DTJ_TUNE_LONGEST", "2"))
SEED = int(os.environ.get("DTJ_TUNE_SEED", "1"))
TRIALS = max(6, KILLS // 2)
pytestmark = pytest.mark.timeout(8 * LONG)
FORK = multiprocessing.get_context("fork")
LAST_STEP = 4


class FileJobs:
    """Jobs that are files: each look is one step further, whichever process looks."""

    look_seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def observe(self, numbers: Sequence[int]) -> Mapping[int, Job]:
        found: dict[int, Job] = {}
        for number in numbers:
            path = self._folder / f"{number}.json"
            if path.exists():
                job = json.loads(path.read_text())
                job["step"] = min(LAST_STEP, job["step"] + 1)
                self._write(path, job)
                state = JobState(job["state"])
                if state is JobState.ACTIVE and job["step"] == LAST_STEP:
                    state = JobState.COMPLETE
                found[number] = Job(state=state, step=job["step"], value=job["lr"] / job["step"])
        return found

    def start(self, number: int, job: Object) -> None:
        path = self._folder / f"{number}.json"
        if path.exists():
            self._write(path, {**json.loads(path.read_text()), "state": JobState.ACTIVE.value})
            return
        args = job["spec"]["entrypoint"]["args"]
        rate = float(args[args.index("--lr") + 1])
        self._write(path, {"state": JobState.ACTIVE.value, "step": 0, "lr": rate, "args": args})
        with (self._folder / "created").open("a") as created:
            created.write(f"{number}\n")

    def stop(self, number: int, job: Object) -> None:
        path = self._folder / f"{number}.json"
        self._write(path, {**json.loads(path.read_text()), "state": JobState.STOPPED.value})

    def export(self, number: int, job: Object, details: Mapping[str, object]) -> None:
        self._write(self._folder / "best", details)

    @staticmethod
    def _write(path: Path, content: object) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content))
        os.replace(new, path)


class Silent:
    """Shows nothing."""

    def show(self, state: engine.State) -> None:
        pass

    def event(self, text: str) -> None:
        pass


def tune_with_files(folder: Path, document: dict[str, Any], transactions: int | None) -> None:
    """Runs a sweep, and kills its own process at the beginning or the commit of a transaction, counted from 1."""
    left = transactions

    def count(*_: object) -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    for event in ("begin", "commit"):
        sqlalchemy.event.listen(SqlEngine, event, count)
    parsed = spec.parse(document, "sweep.yaml")
    store = study.StudyStore(folder / "sweep.db", parsed)
    engine.Engine(parsed, driver.limits_of(parsed, 3), store, FileJobs(folder)).run(Silent())


def arguments(folder: Path) -> list[list[str]]:
    """Returns the arguments of each trial's script."""
    return [json.loads((folder / f"{number}.json").read_text())["args"] for number in range(8)]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_transaction_leaves_each_trial_once(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    document = sweep(trials=8, pruner={"name": "median", "startupTrials": 2} if seed % 2 else {"name": "none"})
    kills = 0
    while True:
        # The first kills hit the creation of the tables, which takes many transactions.
        tuner = FORK.Process(target=tune_with_files, args=(tmp_path, document, draw.randint(1, 60)))
        tuner.start()
        tuner.join(LONG)
        assert tuner.exitcode in (0, -signal.SIGKILL)
        if tuner.exitcode == 0:
            break
        kills += 1
        assert kills < 1000, "the sweep does not end"
    assert kills >= 5
    run = TuneRun(tmp_path, document)
    run.sweep = tmp_path
    trials = run.trials()
    assert list(trials) == list(range(8))
    assert {state for state, _ in trials.values()} <= {"COMPLETE", "PRUNED"}
    created = (tmp_path / "created").read_text().split()
    assert sorted(map(int, created)) == list(range(8))
    given = arguments(tmp_path)
    assert len({tuple(args) for args in given}) == 8, "a continued sweep has drawn the same random numbers again"
    calm = tmp_path / "calm"
    calm.mkdir()
    undisturbed = FORK.Process(target=tune_with_files, args=(calm, document, None))
    undisturbed.start()
    undisturbed.join(LONG)
    assert given == arguments(calm), "a trial that was killed while it was drawn has other parameters"


def tune_with_jobs(folder: Path) -> None:
    """Runs `dtj tune` in a forked process."""
    os.setsid()
    os.chdir(folder)
    output = os.open("tune.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.exit(main(["tune", "sweep.yaml", "--dir", "sweep", "--plain"]))


def test_no_kill_loses_or_doubles_a_trial_with_real_jobs(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    calm, killed = (TuneRun(tmp_path / name, sweep(trials=TRIALS, parallel=3)) for name in ("calm", "killed"))
    for run in (calm, killed):
        run.folder.mkdir()
        run.write()
    kills, trial_kills, code = 0, 0, None
    try:
        while code is None:
            tuner = FORK.Process(target=tune_with_jobs, args=(killed.folder,))
            tuner.start()
            # A moment is not a condition: the kill may hit the schema, a draw, a start, a report, an export.
            tuner.join(draw.uniform(0, LONGEST) if kills < KILLS else 4 * LONG)
            if tuner.exitcode is not None:
                code = tuner.exitcode
                break
            assert kills < KILLS, f"still runs:\n{killed.output()}"
            tuner.kill()
            tuner.join()
            kills += 1
            if (active := killed.jobs.active()) and draw.random() < 0.4:
                pid = (killed.sweep / f"trials/{draw.choice(active):04d}/lock").read_text().strip()
                if pid.isdecimal():
                    os.kill(int(pid), signal.SIGKILL)
                    trial_kills += 1
        assert code == 0, killed.output()
        starts = sum(killed.starts().values())
        print(f"{kills} kills of the tuner, {trial_kills} of a trial: {starts} starts of {TRIALS} jobs")
        undisturbed = FORK.Process(target=tune_with_jobs, args=(calm.folder,))
        undisturbed.start()
        undisturbed.join(4 * LONG)
        assert undisturbed.exitcode == 0, calm.output()
    finally:
        for run in (calm, killed):
            run.kill_rest()
    assert kills >= min(KILLS, 3), "the sweep ended before it could be killed: lower DTJ_TUNE_LONGEST"
    assert list(killed.trials()) == list(range(TRIALS))
    assert list(killed.starts()) == list(range(TRIALS))
    assert killed.trials() == calm.trials()
    assert [killed.args(n) for n in range(TRIALS)] == [calm.args(n) for n in range(TRIALS)]
    # A kill of the tuner restarts no trial: the next tuner adopts those that run.
    assert starts <= TRIALS + trial_kills
    best = (killed.sweep / "best/best.json").read_text()
    assert best == (calm.sweep / "best/best.json").read_text()
