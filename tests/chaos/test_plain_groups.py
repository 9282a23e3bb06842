"""Groups of real agents under random faults: nothing hangs, and the steps that count are those of a calm run.

The command that a failure prints replays it. `make test-long` runs a thousand faults.
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.run import run

FAULTS = int(os.environ.get("DTJ_CHAOS_FAULTS", "30"))
GROUPS = int(os.environ.get("DTJ_CHAOS_GROUPS", "3"))
SEED = int(os.environ.get("DTJ_CHAOS_SEED", "1"))


@pytest.mark.parametrize("seed", range(SEED, SEED + GROUPS))
def test_group_under_random_faults_counts_the_steps_of_a_calm_run(seed: int) -> None:
    print(run("plain", seed, FAULTS).table())
