"""The operator as a whole, run through many worlds. simulator.py lists the faults and the invariants."""

from __future__ import annotations

import collections
import os

import pytest

from dtj_contract.names import Reason
from dtj_core.plan.model import Observed, Plan
from tests.unit.operator.condition_history import ConditionHistory
from tests.unit.operator.simulator import Violation, World

SEEDS = int(os.environ.get("DTJ_PLANNER_SEEDS", "300"))
FIRST = int(os.environ.get("DTJ_PLANNER_FIRST_SEED", "0"))
BATCHES = 6


@pytest.mark.parametrize("batch", range(BATCHES))
def test_operator_keeps_its_invariants_and_worlds_settle_whatever_breaks(batch: int) -> None:
    """A job ends once, as its agents reported; its pods go as its spec demands; then all is quiet."""
    for seed in range(FIRST + batch, FIRST + SEEDS, BATCHES):
        World(seed).run()


def test_simulated_worlds_cover_the_ends_and_faults() -> None:
    """The worlds succeed, fail, time out and restart, and every fault strikes."""
    ends: collections.Counter[str] = collections.Counter()
    strikes: collections.Counter[str] = collections.Counter()
    moves = 0
    for seed in range(40):
        world = World(seed).run()
        ends.update(world.checks.ended.values())
        strikes.update(world.faults.struck)
        moves += world.detector.moves
    assert {Reason.SUCCEEDED, Reason.RESTART_BUDGET_SPENT, Reason.DEADLINE_EXCEEDED} <= set(ends), ends
    assert len(strikes) == 20, strikes
    assert moves > 0, "jobs leave sick nodes"


def test_condition_that_changes_to_and_fro_without_a_cause_is_found() -> None:
    """The check of the histories fails for a planner that flaps, and for a change without a row."""
    world = World(0)
    history = ConditionHistory(world)
    states = [{"conditions": [{"type": "Running", "status": flag, "reason": "PodLost"}]} for flag in ("True", "False")]
    states += [{"conditions": [{"type": "Running", "status": "True", "reason": "WorkersRunning"}]}]
    planner = history.recorded(1, lambda *_: Plan())
    world.clock = lambda: 0.0  # type: ignore[method-assign]
    job = {"spec": {"replicas": 1}}
    planner(job, Observed(), 0.0, world.settings)
    history.written("u", states[0], states[1], 1)
    with pytest.raises(Violation, match="Running is True again, and nothing else was observed"):
        history.written("u", states[1], states[2], 1)
    planner(job, Observed(pods=({"metadata": {}},)), 0.0, world.settings)
    history.written("u", states[1], states[2], 1)
    with pytest.raises(Violation, match="has no row for: Running True - WorkersRunning"):
        history.written("u", states[2], {}, 1)


def test_seed_replays_exactly() -> None:
    first, second = World(7).run(), World(7).run()
    assert first.log == second.log
