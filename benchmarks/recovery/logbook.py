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


def parse(text: str) -> list[Entry]:
    """Returns the entries in the log of one process. A line that is being written is ignored."""
    found: list[Entry] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        match line.split():
            case ["begin", when, attempt, rank, world, pid]:
                found.append(Entry(float(when), int(attempt), int(rank), int(world), int(pid)))
            case ["step", when, step]:
                found[-1].steps.append((float(when), int(step)))
    return found


def read(folder: Path) -> list[Entry]:
    """Returns the entries of all processes, in the order in which they began."""
    return sorted((entry for path in folder.iterdir() for entry in parse(path.read_text())), key=lambda e: e.began)


def group_steps(entries: Iterable[Entry], after: float = 0.0) -> list[tuple[float, int]]:
    """Returns (time, step) of the steps that every rank completed in an entry that began after `after`.

    The time of a step is that of its last rank. A group of another size is another group.
    """
    done: dict[tuple[int, int], dict[int, float]] = {}
    for entry in entries:
        if entry.began > after:
            for when, step in entry.steps:
                # A step that is done again counts where it was last done.
                done.setdefault((entry.world, step), {})[entry.rank] = when
    return sorted((max(ranks.values()), step) for (world, step), ranks in done.items() if len(ranks) == world)


def newest(entries: Sequence[Entry], rank: int) -> Entry:
    """Returns the last entry of a rank."""
    return [entry for entry in entries if entry.rank == rank][-1]


def step_seconds(entries: Iterable[Entry]) -> float:
    """Returns the median time between two steps of one process."""
    gaps = [b[0] - a[0] for entry in entries for a, b in zip(entry.steps, entry.steps[1:], strict=False)]
    return statistics.median(gaps)
