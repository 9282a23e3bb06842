"""A group with torch under random faults: DDP over gloo, checkpoints and memory snapshots, equal to the last bit."""

from __future__ import annotations

import os

import pytest

from tests.chaos.run import run

FAULTS = int(os.environ.get("DTJ_CHAOS_TORCH_FAULTS", "10"))
GROUPS = int(os.environ.get("DTJ_CHAOS_TORCH_GROUPS", "1"))
SEED = int(os.environ.get("DTJ_CHAOS_SEED", "1"))

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seed", range(SEED, SEED + GROUPS))
def test_torch_group_under_random_faults_has_the_losses_of_a_calm_run(seed: int) -> None:
    print(run("torch", seed, FAULTS).table())
