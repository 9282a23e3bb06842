"""Checks what a simulated job has counted at its end."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.unit.agent.simulated import Pod
    from tests.unit.agent.simulator import World


def are_alike(world: World, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether two outcomes agree. A pod and its twin may both lead, and find the same end of an attempt."""
    keys = set(one)
    if any("twin" in kinds for kinds in world.faults.values()):
        keys = {"result", "reason", "attempt"} if one["result"] == "Failed" else keys - {"time"}
    return all(one[key] == other[key] for key in keys)


def check_counted(world: World, final: dict[str, Any]) -> None:
    """Checks attempts that broke by one kind of fault: a failed worker is counted, a lost pod never."""
    free = {"pod", "leave"}
    recoveries = {recovery["attempt"]: recovery for recovery in final["recoveries"]}
    surely = 0
    for before, attempt in itertools.pairwise([0, *world.started[:-1]]):
        faults = set(world.faults.get(attempt, ()))
        # Numbers between the two were granted, and started nowhere.
        earlier = {kind for number in range(before, attempt) for kind in world.faults.get(number, ())}
        # A cut connection may be noticed when the next attempt runs already.
        had_twin = any("twin" in kinds for number, kinds in world.faults.items() if number <= attempt)
        # Where attempts run without some pods, an agent that has crashed is back, and charged, at any later time.
        crashed = any("agent" in kinds for number, kinds in world.faults.items() if number < attempt)
        # An attempt that only its leader has heard of is lost with it: the next one continues the attempt before.
        only_led = world.replicas > 1 and len(world.ran.get(attempt, ())) < 2
        clean = earlier <= free | {"worker"} and not (crashed and world.sizes.are_partial) and not only_led
        recovery = recoveries.get(attempt + 1)
        # A pod that left before may be missed only now.
        alone = earlier <= {"worker"}
        # A leader that dies before any member has heard of the next attempt takes the charge with it.
        is_known = attempt + 1 in world.group
        if alone and faults == {"worker"} and attempt in world.failed and is_known:
            surely += 1
            kind = recovery and (recovery["reason"], recovery["kind"], recovery["counted"])
            # A twin goes, and the pod that has replaced it joins, at any later time.
            kinds = ("InPlace", "Pod") if had_twin else ("InPlace",)
            # A spare takes the place of a pod that is to move, or that is beyond a smaller size.
            kinds += ("Spare",) if world.moves.are_possible or world.sizes.are_scaled else ()
            if recovery and kind not in [("WorkerFailed", each, True) for each in kinds]:
                world.fail(f"a worker of attempt {attempt} failed, but the recovery is {recovery}")
        if clean and faults and faults <= free and recovery and (recovery["kind"] == "InPlace" or recovery["counted"]):
            world.fail(f"attempt {attempt} broke by {faults} alone, but the recovery is {recovery}")
    at_most = sum(kind not in free for kinds in world.faults.values() for kind in kinds)
    if not surely <= final["restarts"]["counted"] <= at_most:
        world.fail(f"{surely} to {at_most} restarts cost budget, but {final['restarts']['counted']} are counted")


def is_remembered(world: World, attempt: int, pods: list[Pod]) -> bool:
    """Returns whether the group must know of an attempt that `pods` have run."""
    if any("twin" in kinds for number, kinds in world.faults.items() if number <= attempt):
        # An attempt that reached only the new pod of an ordinal is forgotten where the old one leads the others.
        return len(pods) > 1 and not any(pod.is_twin for pod in pods)
    return True
