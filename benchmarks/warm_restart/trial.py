"""One trial: one rank of a fresh group is killed, and the phases of the way back are taken from the script's log."""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recovery import processes
from benchmarks.recovery.arms import RANKS, Ours
from benchmarks.recovery.learning import LEARNED_SECONDS, has_learned, left_out
from benchmarks.recovery.logbook import Entry, group_steps, newest
from benchmarks.recovery.trials import LIMIT_SECONDS, Trial, started, wait

FRAMEWORKS = {"plain": "", "gpt": "", "fsdp2": "", "accelerate": "accelerate", "lightning": "lightning",
              "transformers": "transformers", "deepspeed": "deepspeed"}  # fmt: skip
"""The arms, and the package that each needs beside torch."""
MOMENTS = ("begin", "imported", "joined", "built", "loaded")
PHASES = ("restart", "imports", "join", "build", "load", "first step")
"""`restart`: detection, stop, rendezvous, start of the workers. The others end with the moment of their place."""
STEP_SECONDS = 0.05
EVERY = 6
"""Steps between the saves of all but Accelerate, which saves every fourth."""


class Scripted(Ours):
    """`dtj run` of a framework's script, as tests/frameworks runs it."""

    SCRIPT = Path(__file__).resolve().parents[2] / "tests/frameworks/scripts.py"

    def __init__(self, framework: str) -> None:
        super().__init__(2, STEP_SECONDS)
        self.framework = framework
        self.environment |= {
            "TIMES": str(self.folder / "log"), "PAUSE": str(STEP_SECONDS), "STEPS": "1000000", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip

    def arguments(self) -> list[str]:
        """Returns the arguments of the script."""
        return [self.framework, str(self.folder / "out")]


def installed() -> list[str]:
    """Returns the arms whose packages are here."""
    return [name for name, package in FRAMEWORKS.items() if not package or importlib.util.find_spec(package)]


def kill(framework: str, dice: random.Random) -> Trial:
    """Kills a random rank between two saves, once its pod is warm."""
    with started(Scripted(framework), framework) as group:
        learned = wait(lambda: has_learned(group.folder), LEARNED_SECONDS)
        rank, place = dice.randrange(RANKS), dice.uniform(0, STEP_SECONDS)

        def between_saves() -> bool:
            return group_steps(group.entries())[-1][1] % EVERY == 2

        wait(between_saves, LIMIT_SECONDS)
        time.sleep(place)
        victim = newest(group.entries(), rank).pid
        fault = time.monotonic()
        processes.send(victim)
        wait(lambda: bool(group_steps(group.entries(), fault)), LIMIT_SECONDS)
        found = {"rank": rank, "learned": learned, "leftOut": left_out(group.folder)}
        resumed = [entry for entry in group.entries() if entry.began > fault]
        if not group_steps(resumed):
            return {**found, "seconds": None, "output": group.output()[-1500:]}
        return {**found, **phases(resumed, fault)}


def phases(resumed: Sequence[Entry], fault: float) -> Trial:
    """Returns the seconds from `fault` to the first step of all ranks, as a whole and by phase, and the step.

    A phase ends when the last rank has ended it. A phase whose moment no rank has logged is 0, and the next one has
    its time.
    """
    step = min(entry.steps[0][1] for entry in resumed)
    ends = [max(entry.began for entry in resumed)]
    for moment in MOMENTS[1:]:
        ends.append(max(entry.moments.get(moment, ends[-1]) for entry in resumed))
    ends.append(max(entry.steps[0][0] for entry in resumed))
    spans = {name: round(end - begin, 4) for name, begin, end in zip(PHASES, [fault, *ends], ends, strict=False)}
    return {"seconds": round(ends[-1] - fault, 4), "phases": spans, "step": step}
