"""`dtj run` shows the steps of a script that imports nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.client.support import LocalRun, job_yaml

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("plain_ddp.py")


def test_unmodified_ddp_script_shows_its_steps_goodput_and_recovery(start: Callable[..., LocalRun]) -> None:
    job = yaml.safe_load(job_yaml(replicas=1, processes=2))
    job["spec"]["entrypoint"] = {"script": str(SCRIPT), "args": ["120", "0.02"]}
    del job["spec"]["checkpoint"]
    run = start("--kill", "worker:1@step=30", job=yaml.safe_dump(job))
    code, done = run.wait(300)
    assert code == 0, run.lines()
    status = done["status"]
    assert status["progress"]["step"] == 120, "the last count is exact"
    assert status["progress"]["stepSource"] == "Optimizer"
    (recovery,) = status["recoveries"]
    assert recovery["seconds"]["load"] > 0
    assert recovery["seconds"]["firstStep"] == 0.0
    assert not {"lastStep", "lostSteps"} & recovery.keys(), "a count is no step of the job"
    assert 0 < status["goodput"] < 1
    text = "\n".join(run.lines())
    assert "reached      120 optimizer steps in the last attempt" in text
    assert re.search(r"goodput      at least \d+\.\d % of the time", text)
    assert re.search(r"--kill worker:1@step=30: SIGKILL to rank 1 \(process \d+\) at step \d+", text)


def test_script_without_a_torch_optimizer_shows_its_backward_passes(start: Callable[..., LocalRun]) -> None:
    job = yaml.safe_load(job_yaml(replicas=1, processes=2))
    job["spec"]["entrypoint"] = {"script": str(SCRIPT), "args": ["40", "0.02", "by-hand"]}
    run = start(job=yaml.safe_dump(job))
    code, done = run.wait(300)
    assert code == 0, run.lines()
    assert (done["status"]["progress"]["step"], done["status"]["progress"]["stepSource"]) == (40, "Optimizer")
    notes = [line for line in run.lines() if "backward passes are counted as steps" in line]
    assert len(notes) == 1, "rank 0 logs it once"
