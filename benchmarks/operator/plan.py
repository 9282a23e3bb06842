"""The experiments: each has arms, and each arm its trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.operator import creation, leaders, running
from benchmarks.operator.peers import JobSet, TrainingOperator
from benchmarks.operator.systems import Ours, OursWithoutPolicy, System

CREATION, STARTING, SCALE, LISTENING = "creation", "starting", "scale", "listening"
MANY, SILENT, LARGE, LEADERS = "many", "silent", "large", "leaders"
SYSTEMS: dict[str, Callable[..., System]] = {
    "ours": Ours,
    "JobSet": JobSet,
    "Training Operator": TrainingOperator,
}
FLOOR = "floor"
SIZES = (100, 1000, 2000, 5000)
STARTING_JOBS = 100
RUNNING = (1000, 2000)
MOST = 10_000
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
    arms = [Arm(CREATION, FLOOR, trials, partial(creation.floor, jobs))]
    for name, make in SYSTEMS.items():
        for limits in ("shipped", "tuned") if make is not Ours else ("",):
            # As shipped, its limit of requests alone takes 450 s for 1,000 jobs.
            count = 1 if (name, limits) == ("Training Operator", "shipped") else trials
            measure = partial(creation.measure, make, jobs, tuned=limits != "shipped")
            arms.append(Arm(CREATION, f"{name}, {limits}" if limits else name, count, measure))
    for name, make in (SYSTEMS | {"ours, no NetworkPolicy": OursWithoutPolicy}).items():
        measure = partial(creation.measure, make, STARTING_JOBS, tuned=True, run=True, restart=False)
        arms.append(Arm(STARTING, name, trials, measure))
    for size in SIZES:
        measure = partial(creation.measure, Ours, size, tuned=True, restart=False)
        arms.append(Arm(SCALE, f"{size}", trials, partial(_with, measure, jobs=size)))
        arms.append(Arm(SCALE, f"{size}, {FLOOR}", trials, partial(creation.floor, size)))
    arms += [Arm(LISTENING, f"{size}", trials, partial(running.listening, size)) for size in RUNNING]
    arms.append(Arm(MANY, f"{MOST}", 1, partial(running.many, MOST)))
    arms.append(Arm(SILENT, "500", trials, partial(running.beside_silent, 500)))
    arms.append(Arm(LARGE, f"{PODS}", trials, partial(running.large, PODS)))
    arms.append(Arm(LEADERS, "20", 1, leaders.ended_at_random))
    return arms


def _with(measure: Callable[[], dict[str, Any]], **more: Any) -> dict[str, Any]:
    return more | measure()
