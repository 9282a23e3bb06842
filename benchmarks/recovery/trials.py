"""The experiments: one fault in one fresh group, and what followed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from benchmarks.recovery import processes
from benchmarks.recovery.arms import ARMS, OURS, RANKS, SPARED, Group, Nvrx, Spared, Torchft
from benchmarks.recovery.logbook import group_steps, newest, productive_seconds, step_seconds

AnyGroup = TypeVar("AnyGroup", bound=Group)
Trial = dict[str, Any]
"""`seconds` to the next group step, None without one; and what the experiment adds."""

VISIBLE_SECONDS = 5.0
NAMED_SECONDS = 10.0
START_SECONDS = 180.0
LIMIT_SECONDS = 75.0
"""A group that makes no step for so long has hung."""
LOOK_SECONDS = 0.05
STEP_SECONDS = 0.02
# The harness reads the logs once a minute; shorter steps would make them longer.
GOODPUT_STEP_SECONDS = 0.05
IMPORTS = "import torch, torch.distributed, torch._dynamo; import os; os._exit(0)"
"""The imports of a process that begins from nothing, before its first DDP step."""
WARM_STEPS = 20
"""Group steps before a fault."""


class NeverStartedError(RuntimeError):
    """A group did no step at all: the trial measures nothing."""


@contextmanager
def running(arm: str, pods: int, step_seconds: float = STEP_SECONDS) -> Iterator[Group]:
    """Starts a group of an arm, as `started` does."""
    with started(ARMS[arm](pods, step_seconds), arm) as group:
        yield group


@contextmanager
def started(group: AnyGroup, arm: str) -> Iterator[AnyGroup]:
    """Starts a group and waits for its first steps. Kills all its processes at the end.

    Raises NeverStartedError with the output.
    """
    try:
        group.start()
        began = time.monotonic()

        def decided() -> bool:
            # A process shows its mark a moment after its start.
            ended = time.monotonic() - began > VISIBLE_SECONDS and not processes.marked(group.mark)
            return len(group_steps(group.entries(), 0.0, RANKS)) >= WARM_STEPS or ended

        if not wait(decided, START_SECONDS) or not processes.marked(group.mark):
            raise NeverStartedError(f"{arm}: no {WARM_STEPS} steps in {START_SECONDS:.0f} s\n{group.output()}")
        yield group
    finally:
        group.close()


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Returns whether the condition holds within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def sleep_until(moment: float) -> None:
    """Sleeps until `moment`, a time.monotonic()."""
    time.sleep(max(0.0, moment - time.monotonic()))


def recovery(group: Group, after: float, limit: float = LIMIT_SECONDS) -> tuple[float, int] | None:
    """Returns the time and number of the first group step of processes that began after a fault."""
    wait(lambda: bool(group_steps(group.entries(), after, group.LEAST_WORLD)), limit)
    return next(iter(group_steps(group.entries(), after, group.LEAST_WORLD)), None)


def import_seconds() -> float:
    """Returns the seconds in which a fresh process imports torch."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, stderr=subprocess.DEVNULL, timeout=START_SECONDS)
    return time.monotonic() - began


def outcome(group: Group, fault: float, since: float | None = None) -> Trial:
    """Returns the trial's record: seconds from `since` (the fault) to the next group step, steps done twice."""
    before = group_steps(group.entries())[-1][1]
    found = recovery(group, fault)
    if found is None:
        return {"seconds": None, "output": group.output()[-1500:]}
    origin = fault if since is None else since
    trial = {"seconds": round(found[0] - origin, 4), "redone": max(0, before - found[1] + 1)}
    if group.LEAST_WORLD > 1:
        trial["survivors"] = round(group_steps(group.entries(), fault)[0][0] - origin, 4)
    return trial


def kill(arm: str, dice: random.Random) -> Trial:
    """Kills one worker at a random moment."""
    with running(arm, 2) as group:
        time.sleep(dice.random())
        rank = dice.randrange(RANKS)
        victim = newest(group.entries(), rank).pid
        fault = time.monotonic()
        processes.send(victim)
        return {"rank": rank, **outcome(group, fault)}


def start(arm: str, dice: random.Random) -> Trial:
    """Starts four ranks in one pod."""
    began = time.monotonic()
    with running(arm, 1) as group:
        first = group_steps(group.entries())[0][0]
        agent = processes.started(group.agent(0))
        return {"seconds": round(first - began, 4), "fromAgent": round(first - agent, 4)}


def agent(arm: str, dice: random.Random) -> Trial:
    """Kills an agent with its workers; measures from the start of the agent that takes its place.

    The floor is measured after the group has ended.
    """
    with running(arm, 2) as group:
        time.sleep(dice.random())
        ordinal = dice.randrange(group.pods)
        lost = group.agent(ordinal)
        fault = time.monotonic()
        processes.kill_with_descendants(lost, group.mark)
        group.replace(ordinal)
        returned = 0.0

        def has_returned() -> bool:
            nonlocal returned
            found = group.agent(ordinal)
            returned = processes.started(found) if found not in (0, lost) else 0.0
            # An orphan that has not ended yet is older. The kernel counts in hundredths of a second.
            return returned > fault - 0.02

        if not wait(has_returned, LIMIT_SECONDS):
            return {"ordinal": ordinal, "seconds": None, "output": group.output()[-1500:]}
        found = {"ordinal": ordinal, "away": round(returned - fault, 4), **outcome(group, fault, returned)}
    return {**found, "floor": round(import_seconds(), 4)}


def spare(arm: str, dice: random.Random) -> Trial:
    """Kills an agent with its workers while a spare is idle; measures from the kill."""
    with running(arm, 2) as group:
        if not isinstance(group, Spared) or not wait(group.is_warm, START_SECONDS):
            raise NeverStartedError(f"{arm}: no spare in {START_SECONDS:.0f} s\n{group.output()}")
        time.sleep(dice.random())
        ordinal = dice.randrange(group.pods)
        fault = time.monotonic()
        processes.kill_with_descendants(group.agent(ordinal), group.mark)
        return {"ordinal": ordinal, **outcome(group, fault)}


def stop(arm: str, dice: random.Random) -> Trial:
    """Stops one worker with SIGSTOP, which leaves its connections open."""
    with running(arm, 2) as group:
        time.sleep(dice.random())
        rank = dice.randrange(RANKS)
        step = step_seconds(group.entries())
        victim = newest(group.entries(), rank).pid
        fault = time.monotonic()
        processes.send(victim, signal.SIGSTOP)
        found = outcome(group, fault)
        # The status follows within seconds.
        named = wait(lambda: group.named(rank), NAMED_SECONDS)
        return {"rank": rank, "step": round(step, 4), **found, "named": named}


def goodput(arm: str, dice: random.Random, minutes: float) -> Trial:
    """Kills a random worker each minute. Returns the share of the time that went into steps that count.

    A step counts once, for the time since the one before, and in proportion to the ranks that did it.
    """
    with running(arm, 2, GOODPUT_STEP_SECONDS) as group:
        first = group_steps(group.entries(), 0.0, RANKS)[-1]
        kills, latest = 0, first[0]
        for minute in range(int(minutes)):
            sleep_until(first[0] + 60 * minute + 30)
            entries = group.entries()
            if group_steps(entries)[-1][0] > time.monotonic() - 5:  # a group that stands still is left alone
                latest = time.monotonic()
                processes.send(newest(entries, dice.randrange(RANKS)).pid)
                kills += 1
        sleep_until(first[0] + 60 * minutes)
        entries = group.entries()
        last = group_steps(entries)[-1]
        productive = productive_seconds(entries, first[1], RANKS)
        whole = max(60 * minutes, last[0] - first[0])
        return {
            "seconds": None if last[0] < latest else 0.0, "goodput": round(productive / whole, 4), "kills": kills,
            "steps": last[1] - first[1], "step": round(step_seconds(entries), 5),
        }  # fmt: skip


def arms_of(experiment: str, available: list[str]) -> list[str]:
    """Returns the arms that can take part in an experiment."""
    if experiment == "spare":
        return [SPARED]  # no peer has spares
    available = [name for name in available if name != SPARED]
    if experiment == "stop":
        return [OURS]  # torchrun and gloo notice nothing before the timeout of 30 minutes
    if experiment == "goodput":
        return [name for name in available if not issubclass(ARMS[name], Nvrx)]  # each kill leaves it a rank less
    if experiment in ("start", "agent"):
        return [
            name for name in available if not issubclass(ARMS[name], Nvrx | Torchft)
        ]  # no agent, and no other start
    return available
