"""The faults that a group survives, by name: each injects itself, and returns once what it has stopped may run again.

`breaks`: the attempt can't survive the fault, so the next step that counts is one of a later attempt.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.group import START_SECONDS, Group
from tests.lib.waiting import wait_until

Inject = Callable[[Group, random.Random], None]

BRIEF_SECONDS = 0.4
"""A stop, a cut or a delay that is shorter than any deadline of the agents."""
LONG_SECONDS = 7.0
"""Longer than the 5 s after which a silent agent is lost."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    name: str
    inject: Inject
    breaks: bool
    weight: int
    """Its share among the faults that are drawn."""
    is_slow: bool = False
    """Whether the agents' own deadlines make it last for seconds."""
    only: tuple[str, ...] = ()
    """The shapes of group that it needs, if not every one fits."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, weight: int, *, breaks: bool = True, is_slow: bool = False, only: tuple[str, ...] = ()
) -> Callable[[Inject], Inject]:
    """Registers a kind of fault."""

    def register(inject: Inject) -> Inject:
        FAULTS[name] = Fault(name, inject, breaks, weight, is_slow, only)
        return inject

    return register


def draw(dice: random.Random, shape: str, slow: bool) -> Fault:
    """Returns the next fault of a sequence."""
    fit = [each for each in FAULTS.values() if (not each.only or shape in each.only) and (slow or not each.is_slow)]
    return dice.choices(fit, [each.weight for each in fit])[0]


def some_workers(group: Group, dice: random.Random, count: int) -> list[int]:
    """Returns the processes of so many random ranks."""
    found = wait_until("the workers", group.workers, timeout=60)
    return dice.sample(sorted(found.values()), min(count, len(found)))


def some_pod(group: Group, dice: random.Random) -> int:
    """Returns a random ordinal."""
    return dice.choice(sorted(group.pods))


def agent_of(group: Group, ordinal: int) -> int:
    """Returns the process of a pod's agent."""
    return group.agents()[ordinal]


def sleep(group: Group, seconds: float) -> None:
    """Sleeps while the group is tended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        group.look()
        time.sleep(0.01)


# --- workers ------------------------------------------------------------------------------------------------------


@fault("worker killed", 14)
def kill_worker(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))


@fault("two workers killed", 8)
def kill_two_workers(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, *some_workers(group, dice, 2))


@fault("worker stopped, then killed", 5)
def freeze_and_kill_worker(group: Group, dice: random.Random) -> None:
    (victim,) = some_workers(group, dice, 1)
    group.signal(signal.SIGSTOP, victim)
    sleep(group, dice.uniform(0, 0.1))
    group.signal(signal.SIGKILL, victim)


@fault("worker terminated", 4)
def terminate_worker(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGTERM, *some_workers(group, dice, 1))


@fault("worker hangs", 4)
def stop_worker(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGSTOP, *some_workers(group, dice, 1))


@fault("worker killed during a restart", 10)
def kill_during_restart(group: Group, dice: random.Random) -> None:
    before = set(group.workers().values())
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))
    if dice.random() < 0.5:
        sleep(group, dice.uniform(0, 0.1))
    else:
        wait_until("a worker of the next attempt", lambda: group.look() and set(group.workers().values()) - before)
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))


# --- agents and pods ----------------------------------------------------------------------------------------------


@fault("agent killed", 12)
def kill_agent(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, agent_of(group, some_pod(group, dice)))


@fault("agent and worker killed", 6)
def kill_agent_and_worker(group: Group, dice: random.Random) -> None:
    victims = [agent_of(group, some_pod(group, dice)), *some_workers(group, dice, 1)]
    group.signal(signal.SIGKILL, *dice.sample(victims, 2))


@fault("pod replaced", 10)
def lose_pod(group: Group, dice: random.Random) -> None:
    ordinal = some_pod(group, dice)
    group.replace(ordinal)
    group.publish_names()


@fault("pod replaced, DNS answers with the old address", 4)
def lose_pod_with_old_name(group: Group, dice: random.Random) -> None:
    ordinal = some_pod(group, dice)
    group.replace(ordinal)
    group.publish_names(but=ordinal)  # until another fault publishes all addresses


@fault("two pods replaced", 4)
def lose_two_pods(group: Group, dice: random.Random) -> None:
    group.replace(*dice.sample(sorted(group.pods), 2))
    group.publish_names()


@fault("pod evicted", 4)
def evict(group: Group, dice: random.Random) -> None:
    ordinal = some_pod(group, dice)
    victim = group.pods[ordinal].process
    assert victim is not None
    victim.terminate()
    wait_until("the agent to end on SIGTERM", lambda: victim.poll() is not None, timeout=60)
    group.replace(ordinal)
    group.publish_names()


@fault("pod away, then back", 20, only=("spare", "elastic"))
def take_pod_away(group: Group, dice: random.Random) -> None:
    """Loses a pod, waits for steps without it, and brings it back: as the spare, or into a larger group."""
    ordinal = some_pod(group, dice)
    group.lose(ordinal)
    try:
        # The pod before may not have started, or imported, when this one goes: then all wait for a first start.
        group.wait_steps(0, 3, time.monotonic(), START_SECONDS)
    finally:
        group.create(ordinal)
        # Nothing waits until the pod is in an attempt again: other faults may come first.
        group.publish_names()


@fault("agent killed during a restart", 5)
def kill_agent_during_restart(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))
    sleep(group, dice.uniform(0, 0.1))
    group.signal(signal.SIGKILL, agent_of(group, some_pod(group, dice)))


@fault("agent stopped briefly", 4, breaks=False)
def stop_agent_briefly(group: Group, dice: random.Random) -> None:
    victim = agent_of(group, some_pod(group, dice))
    group.signal(signal.SIGSTOP, victim)
    sleep(group, BRIEF_SECONDS)
    group.signal(signal.SIGCONT, victim)


@fault("agent stopped until it is lost", 2, breaks=False, is_slow=True)
def stop_agent(group: Group, dice: random.Random) -> None:
    victim = agent_of(group, some_pod(group, dice))
    group.signal(signal.SIGSTOP, victim)
    sleep(group, LONG_SECONDS)
    group.signal(signal.SIGCONT, victim)


# --- the warm process ---------------------------------------------------------------------------------------------


def warm_process(group: Group, dice: random.Random) -> list[int]:
    """Waits for the warm process of a random pod. A group that has none at all proves nothing."""
    ordinal = some_pod(group, dice)
    return wait_until(f"the warm process of pod {ordinal}", lambda: group.look() and group.warm(ordinal), timeout=60)


@fault("warm process killed", 4, breaks=False)
def kill_warm(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, *warm_process(group, dice))


@fault("warm process and worker killed", 4)
def kill_warm_and_worker(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, *warm_process(group, dice), *some_workers(group, dice, 1))


@fault("warm process stopped, worker killed", 3)
def stop_warm(group: Group, dice: random.Random) -> None:
    victims = warm_process(group, dice)
    group.signal(signal.SIGSTOP, *victims)
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))


# --- the network --------------------------------------------------------------------------------------------------


@fault("connections reset", 4, breaks=False)
def reset_connections(group: Group, dice: random.Random) -> None:
    group.network.reset(some_pod(group, dice))


@fault("network slow, worker killed", 3)
def delay_network(group: Group, dice: random.Random) -> None:
    group.network.delay(dice.uniform(0.02, 0.2))
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))
    sleep(group, 2 * BRIEF_SECONDS)
    group.network.heal()


@fault("partition, brief", 3, breaks=False)
def cut_briefly(group: Group, dice: random.Random) -> None:
    group.network.cut(tuple(dice.sample(sorted(group.pods), 2)))
    sleep(group, BRIEF_SECONDS)
    group.network.heal()


@fault("partition, long", 2, breaks=False, is_slow=True)
def cut(group: Group, dice: random.Random) -> None:
    group.network.isolate(some_pod(group, dice), len(group.pods))
    sleep(group, LONG_SECONDS)
    group.network.heal()


@fault("partition during a restart", 2, is_slow=True)
def cut_during_restart(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))
    sleep(group, dice.uniform(0, 0.1))
    cut(group, dice)


# --- files, memory, clock -----------------------------------------------------------------------------------------


def damage(path: Path, dice: random.Random) -> None:
    """Cuts a file in half, changes one of its bits, or inverts every 16th byte of its last eighth."""
    data = bytearray(path.read_bytes())
    match dice.choice(["half", "bit", "many"]):
        case "half":
            del data[len(data) // 2 :]
        case "bit":
            data[dice.randrange(len(data))] ^= 1
        case "many":
            for place in range(len(data) * 7 // 8, len(data), 16):
                data[place] ^= 0xFF
    # In place, as a broken disk or a stray write does it.
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def newest_files(group: Group) -> list[Path]:
    """Returns the files of the newest checkpoint, of either script."""
    saved = sorted([*group.volume.glob("saved-*"), *group.volume.glob("step-*")])
    found = [path for path in saved[-1:] if path.is_file()]
    return found or [path for folder in saved[-1:] for path in sorted(folder.rglob("*")) if path.is_file()]


@fault("newest checkpoint damaged", 4)
def damage_checkpoint(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGSTOP, *group.workers().values())  # or it may be deleted meanwhile
    for path in dice.sample(found := newest_files(group), min(1, len(found))):
        damage(path, dice)
    for ordinal in group.pods:
        for path in group.snapshots(ordinal).glob("*"):
            path.unlink()
    group.signal(signal.SIGKILL, *group.workers().values())


@fault("half-written checkpoint left behind", 2)
def plant_half_checkpoint(group: Group, dice: random.Random) -> None:
    step = max((one.step for one in group.records.steps[-100:]), default=0) + 20
    attempt = group.records.newest
    (group.volume / f"part-{step:08d}-{attempt}").write_bytes(b"half")
    folder = group.volume / f".incomplete-step-{step:08d}-a{attempt}"
    folder.mkdir(exist_ok=True)
    (folder / "rank-0.pt").write_bytes(b"half")
    group.signal(signal.SIGKILL, *some_workers(group, dice, 1))


@fault("memory snapshot damaged", 8, only=("torch",))
def damage_snapshot(group: Group, dice: random.Random) -> None:
    ordinal = some_pod(group, dice)
    group.signal(signal.SIGSTOP, *group.workers().values())
    for path in sorted(group.snapshots(ordinal).glob("*")):
        damage(path, dice)
    group.signal(signal.SIGKILL, *group.workers().values())


@fault("memory snapshots lost", 4, only=("torch",))
def lose_snapshots(group: Group, dice: random.Random) -> None:
    group.signal(signal.SIGSTOP, *group.workers().values())
    for path in group.snapshots(some_pod(group, dice)).glob("*"):
        path.unlink()
    group.signal(signal.SIGKILL, *group.workers().values())


@fault("wall clock jumps", 3, breaks=False)
def jump(group: Group, dice: random.Random) -> None:
    path = group.folder / "agent-clock"
    path.with_suffix(".new").write_text(str(dice.choice([-86400, -3600, -1, 0, 1, 3600, 86400])))
    path.with_suffix(".new").replace(path)


@fault("wall clock jumps, worker killed", 3)
def jump_and_kill(group: Group, dice: random.Random) -> None:
    jump(group, dice)
    kill_worker(group, dice)
