"""The promise of a recovery, on a real training.

The losses equal those of an undisturbed run, to the last bit.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.client.support import LocalRun

DEMO = Path(__file__).parents[3] / "examples" / "demo.yaml"
STEPS = 67  # 3 epochs of 1437 samples, 64 at a time


def digits(*more: str) -> str:
    """Returns the demo's job, smaller, with every step's loss in the log."""
    job = yaml.safe_load(DEMO.read_text())
    job["spec"]["processesPerPod"] = 1
    job["spec"]["entrypoint"]["args"] = ["--epochs", "3", "--step-time-ms", "20", "--log-every", "1", *more]
    return yaml.safe_dump(job)


def losses(run: LocalRun) -> list[tuple[int, str]]:
    """Returns (step, loss as printed) in the order of the log; repeated steps appear twice."""
    return [
        (int(step), loss)
        for step, loss in re.findall(r" step=(\d+) (?:.* )?loss=(\S+)", (run.run_dir / "demo-0.log").read_text())
    ]


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_killed_worker_leaves_no_trace_in_the_losses(start: Callable[..., LocalRun], tmp_path: Path) -> None:
    for name in ("calm", "rough"):
        (tmp_path / name).mkdir()
    calm = start(folder=tmp_path / "calm", job=digits())
    code, job = calm.wait(120)
    assert code == 0, calm.lines()
    assert job["status"]["attempt"] == 1
    expected = dict(losses(calm))
    assert sorted(expected) == list(range(1, STEPS + 1))

    rough = start("--kill", "worker:1@step=30", folder=tmp_path / "rough", job=digits("--snapshot-every", "1"))
    code, job = rough.wait(120)
    assert code == 0, rough.lines()
    assert job["status"]["attempt"] == 2
    (recovery,) = job["status"]["recoveries"]
    assert recovery["resumedStep"] >= 29
    assert recovery["source"] == "memory"
    assert recovery["lostSteps"] <= 1, "at most one step"
    assert not list(Path("/dev/shm").glob(f"dtj-{job['metadata']['uid']}-*"))
    seen = losses(rough)
    assert {step for step, _ in seen} == set(expected)
    assert [pair for pair in seen if pair[1] != expected[pair[0]]] == []
    assert len(seen) > len(expected) or recovery["lostSteps"] == 0
    final = [
        float(accuracy)
        for accuracy in re.findall(r"final step=67 .* accuracy=(\S+)", (rough.run_dir / "demo-0.log").read_text())
    ]
    assert final[0] > 0.8


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_pod_that_terminates_costs_no_step_and_no_budget(start: Callable[..., LocalRun]) -> None:
    """An eviction and a move away from a sick node send a pod's agent SIGTERM; all ranks then save together."""
    run = start(job=digits("--step-time-ms", "60"))
    run.until_step(20)
    [agent] = [pid for pid in run.agents() if b"DTJ_ORDINAL=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
    os.kill(agent, signal.SIGTERM)
    code, job = run.wait(120)
    assert code == 0, run.lines()
    (recovery,) = job["status"]["recoveries"]
    assert (recovery["lostSteps"], recovery["counted"]) == (0, False)
    assert recovery["resumedStep"] == recovery["lastStep"] >= 20
