"""Runs one group through a seeded sequence of faults, and checks the oracle at the end."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

from tests.chaos import oracle
from tests.chaos.faults import FAULTS, draw
from tests.chaos.group import END_SECONDS, SHAPES, Group, Shape
from tests.chaos.plain_script import trajectory
from tests.chaos.records import Records, Sample

STEPS_BETWEEN = 3
"""Group steps that a later attempt does before the next fault."""
STEP_SECONDS = 0.1
"""The most that a step of an uninterrupted group may take on a busy machine."""


class ChaosError(AssertionError):
    """A run that hung or broke the oracle, with the command that replays it."""


@dataclass(slots=True)
class Report:
    """Measures of a run: seconds to the next step that counts, by kind of fault."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps: int = 0
    attempts: int = 0
    snapshots: int = 0
    """Attempts that resumed from a memory snapshot."""

    def table(self) -> str:
        """Returns one line for each kind of fault."""
        rows = [f"{'fault':36} {'n':>4} {'p50':>7} {'worst':>7}"]
        for name, found in sorted(self.seconds.items()):
            ordered = sorted(found)
            rows.append(f"{name:36} {len(ordered):4} {ordered[len(ordered) // 2]:7.2f} {ordered[-1]:7.2f}")
        return "\n".join(
            [*rows, f"{self.steps} steps that count, {self.attempts} attempts, {self.snapshots} from snapshots"]
        )


def run(name: str, seed: int, faults: int, slow: bool = False, only: str = "", verbose: bool = False) -> Report:
    """Injects faults into one group. Raises ChaosError."""
    group, dice, report, done = Group(SHAPES[name]), random.Random(seed), Report(), []
    try:
        group.start()
        for number in range(faults):
            kind = FAULTS[only] if only else draw(dice, name, slow)
            done.append(kind.name)
            before, since = group.look().newest, time.monotonic()
            kind.inject(group, dice)
            # A fault of which no member dies is over when training continues after it.
            breaks = kind.breaks and not group.shape.has_idle_pods
            quiet = since if breaks else time.monotonic()
            seconds = group.wait_steps(before if breaks else 0, STEPS_BETWEEN, quiet)
            report.seconds[kind.name].append(seconds)
            if verbose:
                print(f"{number:4} {kind.name}: {seconds:.3f} s", flush=True)
        records = check_end(group)
        report.steps, report.attempts = max(one.step for one in records.steps), records.newest
        report.snapshots = group.count("] resumed step ")
    except AssertionError as error:
        replay = f"python -m tests.chaos --group {name} --seed {seed} --faults {faults}"
        flags = (" --slow" if slow else "") + (f" --only {only!r}" if only else "")
        printed = "" if "--- agent" in str(error) else group.output()
        raise ChaosError(f"after {done}\n{error}\n{printed}\nReplay it with: {replay}{flags}") from error
    finally:
        group.close()
    return report


def check_end(group: Group) -> Records:
    """Ends the training. Raises AssertionError if the records are not those of a calm run, or if anything is left."""
    records = group.finish()
    steps = max(one.step for one in records.steps)
    wrong = oracle.findings(records, uninterrupted(group.shape, steps)) + group.left()
    if steps < group.asked:
        wrong.insert(0, f"the training ended after {steps} steps in place of {group.asked}")
    assert not wrong, "\n".join(wrong)
    return records


def uninterrupted(shape: Shape, steps: int) -> dict[int, Sample]:
    """Returns loss and samples of each step of a run without a fault."""
    if not shape.is_torch:
        return {step: (loss, ids) for step, loss, ids in trajectory(steps)}
    calm = Group(shape, CHAOS_STEPS=str(steps), CHAOS_STEP_SECONDS="0")
    try:
        calm.start()
        records = calm.end(END_SECONDS + STEP_SECONDS * steps)
    finally:
        calm.close()
    return by_step(records)


def by_step(records: Records) -> dict[int, Sample]:
    """Returns loss and samples by step of records in which nothing was done twice."""
    found: dict[int, Sample] = {}
    for one in records.steps:
        loss, ids = found.get(one.step, (one.loss, ()))
        assert loss == one.loss, f"the ranks of the uninterrupted run have different losses at step {one.step}"
        found[one.step] = loss, (*ids, *one.ids)
    return found
