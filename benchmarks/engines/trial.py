"""One trial: one kill in a fresh group, at the same place of its training, and what followed."""

from __future__ import annotations

import time

from benchmarks.engines.arms import BUILD, Arm, Launched
from benchmarks.ledger import Trial
from benchmarks.recovery import processes
from benchmarks.recovery.learning import LEARNED_SECONDS
from benchmarks.recovery.logbook import group_steps, newest, sized_steps
from benchmarks.recovery.trials import LIMIT_SECONDS, NeverStartedError, started, wait

HANG_SECONDS = 120.0
"""A group that makes no step for so long has hung."""
VICTIM = 3
EVERY, PLACE = 10, 6
"""Steps between two checkpoints, and those from the last checkpoint to the kill."""


def kill(arm: Arm) -> Trial:
    """Kills rank 3 or a Ray node, PLACE steps after a checkpoint. Raises NeverStartedError if nothing trains before."""
    with started(arm.make(), arm.name) as group:
        settled = wait(group.is_settled, LEARNED_SECONDS)
        if not wait(lambda: group_steps(group.entries())[-1][1] % EVERY == PLACE, LIMIT_SECONDS):
            raise NeverStartedError(f"{arm.name}: the group has stopped before the kill\n{group.output()}")
        victim = group.ray_node() if arm.node else newest(group.entries(), VICTIM).pid
        if not victim:
            raise NeverStartedError(f"{arm.name}: nothing to kill\n{group.output()}")
        fault = time.monotonic()
        processes.send(victim)
        return {"settled": settled, **outcome(group, fault)}


def outcome(group: Launched, fault: float) -> Trial:
    """Returns seconds to the next step of a whole group, the steps that are lost, and the ranks that continue.

    `end` is `recovered`, `hung`, or `ended` where nobody is left to restart a rank.
    """
    before = group_steps(group.entries())[-1][1]

    def found() -> tuple[float, int, int] | None:
        steps = sized_steps(group.entries(), fault)
        return next((step for step in steps if step[2] >= group.LEAST_WORLD), None)

    wait(lambda: found() is not None or group.has_ended(), HANG_SECONDS)
    step = found()
    if step is None:
        end = "ended" if group.has_ended() else "hung"
        after = round(time.monotonic() - fault, 2)
        output = group.output()[-1500:].replace(f"{BUILD.parent}/", "")  # paths as in any other checkout
        return {"seconds": None, "end": end, "after": after, "output": output}
    when, number, ranks = step
    return {"seconds": round(when - fault, 4), "end": "recovered", "lost": max(0, before - number + 1), "ranks": ranks}
