"""The scripts' logs of one trial: which group step came when. Pure but for `read`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Entry:
    """One entry of one process into the training, and the steps that the process did since."""

    began: float
    attempt: int
    rank: int
    world: int
    pid: int
    steps: list[tuple[float, int]] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)
    """The times of other lines, by their first word."""


def parse(text: str) -> list[Entry]:
    """Returns the entries in the log of one process. A line that is being written is ignored."""
    found: list[Entry] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        match line.split():
            case ["begin", when, attempt, rank, world, pid]:
                found.append(Entry(float(when), int(attempt), int(rank), int(world), int(pid)))
            case ["step", when, step]:
                found[-1].steps.append((float(when), int(step)))
            case [moment, when]:
                found[-1].moments[moment] = float(when)
    return found


def read(folder: Path) -> list[Entry]:
    """Returns the entries of all processes, in the order in which they began."""
    return sorted((entry for path in folder.iterdir() for entry in parse(path.read_text())), key=lambda e: e.began)


def group_steps(entries: Iterable[Entry], after: float = 0.0, least_world: int = 1) -> list[tuple[float, int]]:
    """Returns (time, step) of the steps that every rank completed in an entry that began after `after`.

    The time of a step is that of its last rank. A group of another size is another group, and counts if it has
    at least `least_world` ranks.
    """
    return [(when, step) for when, step, world in sized_steps(entries, after) if world >= least_world]


def sized_steps(entries: Iterable[Entry], after: float = 0.0) -> list[tuple[float, int, int]]:
    """Returns (time, step, ranks) of the steps of group_steps."""
    done: dict[tuple[int, int], dict[int, float]] = {}
    for entry in entries:
        if entry.began > after:
            for when, step in entry.steps:
                # A step that is done again counts where it was last done.
                done.setdefault((entry.world, step), {})[entry.rank] = when
    return sorted((max(ranks.values()), step, world) for (world, step), ranks in done.items() if len(ranks) == world)


def productive_seconds(entries: Sequence[Entry], first: int, ranks: int) -> float:
    """Returns the time that went into the steps after `first`, each counted where it was last done.

    A step lasts since the one before in the same entry; the first of an entry counts as the median. A step of fewer
    than `ranks` trains on fewer samples, and counts as that share. A step that a checkpoint has, but a rank was
    killed before it logged, counts with the step after it.
    """
    usual = step_seconds(entries)
    lasted: dict[tuple[int, int], list[float]] = {}
    for entry in entries:
        for (before, _), (when, step) in zip(entry.steps, entry.steps[1:], strict=False):
            lasted.setdefault((entry.world, step), []).append(when - before)
    worlds = {step: world for _, step, world in sized_steps(entries)}
    total, before = 0.0, first
    for step in sorted(step for step in worlds if step > first):
        world = worlds[step]
        took = lasted.get((world, step), [usual])[-world:]
        total += (statistics.mean(took) + usual * (step - before - 1)) * world / ranks
        before = step
    return total


def newest(entries: Sequence[Entry], rank: int) -> Entry:
    """Returns the last entry of a rank."""
    return [entry for entry in entries if entry.rank == rank][-1]


def step_seconds(entries: Iterable[Entry]) -> float:
    """Returns the median time between two steps of one process."""
    gaps = [b[0] - a[0] for entry in entries for a, b in zip(entry.steps, entry.steps[1:], strict=False)]
    return statistics.median(gaps)
