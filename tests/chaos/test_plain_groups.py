"""Groups of real agents under random faults: nothing hangs, and the steps that count are those of a calm run.

The command that a failure prints replays it. `make test-long` runs a thousand faults.
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.run import run

SEED = int(os.environ.get("DTJ_CHAOS_SEED", "1"))


@pytest.mark.parametrize(
    ("group", "seed", "faults"),
    [("plain", SEED, 30), ("plain", SEED + 1, 30), ("spare", SEED, 15), ("elastic", SEED, 15)],
)
def test_group_under_random_faults_counts_the_steps_of_a_calm_run(group: str, seed: int, faults: int) -> None:
    print(run(group, seed, faults).table())
