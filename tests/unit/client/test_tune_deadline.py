"""A trial that hangs holds its sweep no longer than stepDeadlineSeconds, whatever it is deaf to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dtj.local import processes
from dtj.tune import render, spec
from dtj.tune.local_jobs import LocalTrialJobs
from dtj.tune.planner import JobState
from tests.lib.waiting import wait_until
from tests.unit.client.sweeps import LONG, TuneRun, sweep

SCRIPT = Path(__file__).with_name("tune_hanging.py")
DEADLINE = 20
"""Seconds; more than a trial needs to start on a busy machine."""
pytestmark = pytest.mark.timeout(LONG)


def hanging() -> dict[str, Any]:
    document = sweep(trials=6, parallel=6, stepDeadlineSeconds=DEADLINE, algorithm={"name": "random", "seed": 1})
    document["spec"]["parameters"] = {"mode": {"type": "choice", "values": ["works", "sleeps", "spins"]}}
    job = document["spec"]["job"]["spec"]
    job["entrypoint"] = {"script": str(SCRIPT)}
    job["template"] = {"spec": {"terminationGracePeriodSeconds": 1}}
    return document


@pytest.mark.thorough
def test_trials_that_hang_fail_and_the_sweep_ends(tmp_path: Path) -> None:
    run = TuneRun(tmp_path, hanging())
    try:
        assert run.run("--plain") == 0, run.output()
    finally:
        run.kill_rest()
    modes = {number: run.args(number)[-1] for number in range(6)}
    assert set(modes.values()) == {"works", "sleeps", "spins"}
    expected = {number: "COMPLETE" if mode == "works" else "FAIL" for number, mode in modes.items()}
    assert {number: state for number, (state, _) in run.trials().items()} == expected, run.output()
    stalled = [number for number, mode in modes.items() if mode != "works"]
    for number in stalled:
        message = f"trial {number} failed: no new step for {DEADLINE} s while its ranks ran (spec.stepDeadlineSeconds)"
        assert message in run.output()
        assert run.starts()[number] == 1
    assert run.jobs.active() == []


def test_a_process_that_does_not_stop_is_killed_with_its_workers(tmp_path: Path) -> None:
    document = sweep(steps=100_000)
    document["spec"]["job"]["spec"]["template"] = {"spec": {"terminationGracePeriodSeconds": 1}}
    parsed = spec.parse(document, "sweep.yaml")
    run = TuneRun(tmp_path, document)
    jobs = LocalTrialJobs(run.sweep, "val_loss")
    jobs.kill_seconds = 0.0
    job = render.trial_job(parsed, 0, {"lr": 0.1, "momentum": 0.5, "decay": "none"})
    try:
        jobs.start(0, job)
        run.until_saved(10)
        uid = run.uid(0)
        os.kill(int((run.sweep / "trials/0000/lock").read_text()), signal.SIGSTOP)

        def is_stopped() -> bool:
            jobs.stop(0, job)
            return jobs.observe([0])[0].state is JobState.STOPPED

        wait_until("the process is killed", is_stopped, timeout=60)
        wait_until("its workers too", lambda: not list(processes.tagged(f"{uid}/")), timeout=60)
    finally:
        run.kill_rest()
