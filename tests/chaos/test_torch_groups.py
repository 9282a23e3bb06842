"""A group with torch under random faults: DDP over gloo, checkpoints and memory snapshots, equal to the last bit."""

from __future__ import annotations

import os

import pytest

from tests.chaos.run import run

SEED = int(os.environ.get("DTJ_CHAOS_SEED", "1"))


@pytest.mark.torch
def test_torch_group_under_random_faults_has_the_losses_of_a_calm_run() -> None:
    report = run("torch", SEED, 10)
    print(report.table())
    assert report.snapshots, "without one, the run shows nothing about snapshots"
