"""The example of three added lines in a user's own loop, with `dtj run` from the top of the repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.client.support import LocalRun

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_three_added_lines_recover_a_loop_and_show_its_progress(start: Callable[..., LocalRun], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    run = start("--kill", "worker:1@step=70", job=(EXAMPLES / "own-loop.yaml").read_text())
    code, job = run.wait(240)
    assert code == 0, run.lines()
    status = job["status"]
    assert status["attempt"] == 2
    assert status["recoveries"][0]["resumedStep"] >= 50, "the script resumed from a checkpoint"
    progress = status["progress"]
    assert progress["step"] == progress["totalSteps"] == status["checkpoint"]["step"] == 400
    assert progress["loss"] < 0.5
    assert progress["samplesPerSecond"] > 0
    losses: dict[int, list[float]] = {}
    for line in (tmp_path / ".dtj/volumes/shared/default/own-loop/metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        losses.setdefault(record["step"], []).append(record["loss"])
    assert sorted(losses) == list(range(10, 401, 10))
    assert all(len(set(twice)) == 1 for twice in losses.values()), "a repeated step had the same loss again"
