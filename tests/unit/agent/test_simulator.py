"""The group as a whole, run through many worlds. simulator.py lists the faults and the invariants."""

from __future__ import annotations

import collections
import os

import pytest

from tests.unit.agent.simulator import World

SEEDS = int(os.environ.get("DTJ_SIMULATOR_SEEDS", "800"))
FIRST = int(os.environ.get("DTJ_SIMULATOR_FIRST_SEED", "0"))
BATCHES = 12


@pytest.mark.parametrize("batch", range(BATCHES))
def test_group_keeps_its_invariants_and_the_job_ends_whatever_breaks(batch: int) -> None:
    """Attempts grow, ranks are contiguous, no pod runs two attempts, and one final outcome comes."""
    for seed in range(FIRST + batch, FIRST + SEEDS, BATCHES):
        World(seed).run()


def test_simulated_worlds_cover_the_outcomes_and_recoveries() -> None:
    """The worlds recover in place and from lost pods, succeed and fail: they load the invariants."""
    seen: collections.Counter[str] = collections.Counter()
    spared = 0
    for seed in range(80):
        world = World(seed).run()
        spared += world.moves.spared
        outcome = world.outcomes[0]
        seen[outcome["reason"]] += 1
        for recovery in outcome["recoveries"]:
            seen[recovery["kind"]] += 1
            seen[recovery["reason"]] += 1
    assert {
        "AllWorkersSucceeded",
        "Rank0Succeeded",
        "RestartBudgetSpent",
        "InPlace",
        "Pod",
        "WorkerFailed",
        "PodLost",
        "AgentCrashed",
        "ConnectionLost",
        "WorkerStuck",
        "Spare",
        "Resize",
    } <= set(seen), seen
    assert spared, "no spare has taken the place of a pod that was to move"


def test_seed_replays_exactly() -> None:
    first, second = World(7).run(), World(7).run()
    assert first.log == second.log
    assert first.time == second.time
