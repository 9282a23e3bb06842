"""Sweeps with real local jobs: results, early stops, graceful stops, failures, and the lock."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.waiting import wait_until
from tests.unit.client.sweeps import LONG, TuneRun, sweep

pytestmark = pytest.mark.timeout(4 * LONG)
Begin = Callable[[dict[str, Any]], TuneRun]


@pytest.fixture
def tuning(tmp_path: Path) -> Iterator[Begin]:
    runs: list[TuneRun] = []

    def create(document: dict[str, Any]) -> TuneRun:
        runs.append(TuneRun(tmp_path, document))
        return runs[-1]

    yield create
    for run in runs:
        run.kill_rest()


def test_a_sweep_runs_each_trial_once_and_exports_the_best(tuning: Begin) -> None:
    run = tuning(sweep())
    assert run.run() == 0, run.output()
    trials = run.trials()
    assert list(trials) == [0, 1, 2, 3]
    assert {state for state, _ in trials.values()} == {"COMPLETE"}
    assert run.starts() == dict.fromkeys(range(4), 1)
    best = json.loads((run.sweep / "best/best.json").read_text())
    assert best["value"] == min(value for _, value in trials.values() if value is not None)
    state = json.loads((run.sweep / "best/checkpoint/state.json").read_text())
    assert state["step"] == 20
    args = run.args(best["trial"])
    assert args[args.index("--lr") + 1] == str(best["parameters"]["lr"])
    page = (run.sweep / "sweep.html").read_text()
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "the page needs something from elsewhere"
    # A second run has nothing left to do.
    assert run.run() == 0, run.output()
    assert run.trials() == trials
    assert run.starts() == dict.fromkeys(range(4), 1)


@pytest.mark.thorough
def test_more_trials_are_added_to_a_finished_sweep_and_another_space_is_rejected(tuning: Begin) -> None:
    run = tuning(sweep(steps=2, trials=1))
    assert run.run() == 0, run.output()
    first = run.trials()
    run.document["spec"]["trials"] = 2
    assert run.run() == 0, run.output()
    assert list(run.trials()) == [0, 1]
    assert run.trials()[0] == first[0]
    run.document["spec"]["parameters"]["momentum"]["max"] = 0.5
    assert run.run() == 2
    assert "spec.parameters differs from that of the sweep" in run.output()
    assert run.run("--fresh") == 0, run.output()


def test_the_pruner_stops_a_trial_gracefully(tuning: Begin) -> None:
    steps = 200
    document = sweep(steps=steps, step_seconds=0.1, trials=6, pruner={"name": "median", "startupTrials": 0})
    # With another momentum, one of two trials with lr 1 would be worse than the median of both.
    document["spec"]["parameters"] = {
        name: {"type": "choice", "values": values}
        for name, values in {"lr": [1.0, 1e-6], "momentum": [0.5], "decay": ["none"]}.items()
    }
    run = tuning(document)
    run.begin()
    number = wait_until(
        "a pruned trial",
        lambda: [n for n, (state, _) in (run.trials() if run.starts() else {}).items() if state == "PRUNED"],
        timeout=LONG,
        detail=run.output,
    )[0]
    assert run.jobs.observe([number])[number].state.value == "stopped"
    assert 0 < run.saved_step(number) < steps, "it saved on SIGTERM"
    assert run.args(number)[run.args(number).index("--lr") + 1] == "1e-06"


@pytest.mark.thorough
def test_a_stopped_sweep_continues_its_trials_from_their_checkpoints(tuning: Begin) -> None:
    run = tuning(sweep(steps=60, step_seconds=0.1, trials=2))
    process = run.begin()
    number = run.until_saved(10)
    process.send_signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM, run.output()
    assert run.jobs.active() == []
    assert {state for state, _ in run.trials().values()} == {"RUNNING"}
    stopped_at = run.saved_step(number)
    assert 10 <= stopped_at < 60
    assert run.run() == 0, run.output()
    assert list(run.trials()) == [0, 1]
    assert run.starts()[number] == 2
    again = (run.sweep / f"trials/{number:04d}/start-2/run/search-{number:04d}-0.log").read_text()
    assert "step 10 " not in again, "it began from the start"


def test_a_second_tuner_of_a_sweep_is_rejected(tuning: Begin, tmp_path: Path) -> None:
    run = tuning(sweep(trials=1, steps=1000))
    process = run.begin()
    run.until_saved(10)
    command = [sys.executable, "-m", "dtj.main", "tune", "sweep.yaml", "--dir", "sweep"]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False)
    assert second.returncode == 1
    assert f"another dtj tune (process {process.pid}) runs the sweep in" in second.stderr
    process.kill()
    process.wait()
    fresh = subprocess.run(
        [*command, "--fresh"], cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert fresh.returncode == 1
    assert "--fresh: trials 0 of a killed dtj tune still run" in fresh.stderr


def test_trials_that_fail_end_the_sweep_with_their_reason(tuning: Begin) -> None:
    document = sweep(maxFailedTrials=2, parallel=1)
    document["spec"]["job"]["spec"]["entrypoint"]["script"] = "missing.py"
    run = tuning(document)
    assert run.run() == 1
    assert [state for state, _ in run.trials().values()] == ["FAIL", "FAIL"]
    assert "trial 0 failed: EntrypointNotFound: " in run.output()
    assert "2 trials have failed (spec.maxFailedTrials)" in run.output()


def test_a_metric_that_is_never_reported_is_named(tuning: Begin) -> None:
    run = tuning(sweep(steps=2, trials=1, objective={"metric": "accuracy"}))
    assert run.run() == 1
    assert "completed without accuracy in its progress; it reported val_loss" in run.output()


def test_a_dry_run_prints_a_job_and_starts_nothing(tuning: Begin) -> None:
    run = tuning(sweep())
    assert run.run("--dry-run") == 0
    assert "name: search-0000" in run.output()
    assert not run.sweep.exists()


def test_without_optuna_the_error_names_the_extra(tmp_path: Path) -> None:
    run = TuneRun(tmp_path, sweep())
    run.begin("--dry-run")
    run.end()
    program = "import sys; sys.modules['optuna'] = None; from dtj.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "tune", "sweep.yaml", "--dir", "sweep"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"dtj: optuna is not installed for {sys.executable}: dtj tune needs Optuna: pip install 'optuna>=5,<6'\n"
    )
