"""The experiments: each has arms, and each arm its trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.operator import creation, leaders, running
from benchmarks.operator.peers import JobSet, TrainingOperator
from benchmarks.operator.systems import Ours, System

CREATION, SCALE, LISTENING, SILENT, LARGE, LEADERS = "creation", "scale", "listening", "silent", "large", "leaders"
SYSTEMS: dict[str, Callable[..., System]] = {
    "ours": Ours,
    "JobSet": JobSet,
    "Training Operator": TrainingOperator,
}
FLOOR = "floor"
SIZES = (100, 1000, 2000, 5000)
RUNNING = (1000, 2000)
PODS = 1024


@dataclass(frozen=True)
class Arm:
    """One way to measure, and how often."""

    key: str
    arm: str
    trials: int
    measure: Callable[[], dict[str, Any]]


def experiments(jobs: int, trials: int) -> list[Arm]:
    """Returns the arms of all experiments, in the order in which they are measured."""
    arms = []
    for limits in ("tuned", "shipped"):
        tuned = limits == "tuned"
        arms.append(Arm(CREATION, f"{FLOOR}, {limits}", trials, partial(creation.floor, jobs, tuned=tuned)))
        for name, make in SYSTEMS.items():
            # As shipped, its limit of requests alone takes 450 s for 1,000 jobs.
            count = 1 if (name, limits) == ("Training Operator", "shipped") else trials
            measure = partial(creation.measure, make, jobs, tuned=tuned, run=tuned)
            arms.append(Arm(CREATION, f"{name}, {limits}", count, measure))
    for size in SIZES:
        measure = partial(creation.measure, Ours, size, tuned=True, run=False, restart=False)
        arms.append(Arm(SCALE, f"{size}", 1, partial(_with, measure, jobs=size)))
    arms += [Arm(LISTENING, f"{size}", 1, partial(running.listening, size)) for size in RUNNING]
    arms.append(Arm(SILENT, "500", trials, partial(running.beside_silent, 500)))
    arms.append(Arm(LARGE, f"{PODS}", trials, partial(running.large, PODS)))
    arms.append(Arm(LEADERS, "20", 1, leaders.ended_at_random))
    return arms


def _with(measure: Callable[[], dict[str, Any]], **more: Any) -> dict[str, Any]:
    return more | measure()
