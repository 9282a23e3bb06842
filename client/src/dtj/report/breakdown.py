"""The mean step of a run, section by section and rank by rank, from its logged steps. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from dtj.report.samples import Sample

MIN_STEPS = 5
"""Fewer steps make no mean: one of them with a save or a cold cache would be most of it."""


class Section(StrEnum):
    """A part of a step; the value is its text in a legend. No second counts in two sections."""

    DATA = "waiting for data"
    COMPUTE = "computing"
    COMMUNICATION = "waiting in collectives"
    CHECKPOINT = "standing still for a save"
    OTHER = "outside of all sections"


METRICS = {
    Section.DATA: "data_seconds",
    Section.COMPUTE: "compute_seconds",
    Section.COMMUNICATION: "exposed_seconds",
    Section.CHECKPOINT: "checkpoint_seconds",
}


@dataclass(frozen=True, slots=True)
class Window:
    """Steps between two logged steps of one attempt: the later one has their means."""

    begin: float
    """Time of the earlier one, in Unix seconds."""
    sample: Sample
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Means over `steps` steps; times are seconds per step, of the mean rank."""

    steps: int
    step: float
    sections: dict[Section, float]
    """Only those that were measured; OTHER is the rest of the step."""
    by_rank: dict[Section, tuple[float, ...]]
    """Of the ranks of the newest group, if the size has changed."""
    ranks: int
    """Ranks of that group; 0: not known."""
    communication: float | None = None
    """Seconds per step in which a collective was in flight, exposed or not."""
    memory_share: float | None = None
    """The peak of the rank that comes nearest to its limit, over the limit."""
    gpu_utilization: float | None = None
    """0 to 1, of the mean device."""
    mfu: float | None = None
    rates: dict[str, float]
    """Samples, tokens and images per second, by the name of the metric, of all ranks."""
    stalls: float
    """Seconds of all steps in which the training stood still for saves."""

    def share(self, section: Section) -> float | None:
        """Returns the share of a step, 0 to 1; None if the section was not measured."""
        seconds = self.sections.get(section)
        return None if seconds is None else seconds / self.step

    @property
    def overlap(self) -> float | None:
        """The share of communication behind which the rank computed."""
        exposed = self.sections.get(Section.COMMUNICATION)
        if exposed is None or not self.communication:
            return None
        return max(0.0, 1 - exposed / self.communication)

    @property
    def own(self) -> tuple[float, ...]:
        """Each rank's own work in a step: data and computation, without waits for other ranks."""
        data, compute = self.by_rank.get(Section.DATA, ()), self.by_rank.get(Section.COMPUTE, ())
        return tuple(a + b for a, b in zip(data, compute, strict=True)) if len(data) == len(compute) else ()


def following(samples: Iterable[Sample]) -> list[tuple[Sample, Sample]]:
    """Returns each logged step with the one before it in the same attempt.

    The first logged step of an attempt is left out. The steps before it are slow, because buffers are allocated and
    files and kernels are read for the first time; after a restart it may be the mean of a single step.
    """
    return [(a, b) for a, b in pairwise(samples) if a.attempt == b.attempt and b.step > a.step]


def windows(samples: Iterable[Sample]) -> list[Window]:
    """Returns the windows of all attempts that have the time of their steps."""
    return [
        Window(before.time, sample, sample.step - before.step)
        for before, sample in following(samples)
        if sample.numbers.get("step_seconds", 0.0) > 0
    ]


def breakdown(samples: Iterable[Sample]) -> Breakdown | None:
    """Returns the mean step; None if the logged steps don't show one."""
    found = windows(samples)
    steps = sum(window.steps for window in found)
    step = mean("step_seconds", found)
    if steps < MIN_STEPS or step is None:
        return None
    sections = {section: value for section, name in METRICS.items() if (value := mean(name, found)) is not None}
    sections[Section.OTHER] = max(0.0, step - sum(sections.values()))
    by_rank, ranks = _by_rank(found)
    rates = {
        name: rate
        for name in ("samples_per_second", "tokens_per_second", "images_per_second")
        if (rate := mean_rate(name, found)) is not None
    }
    return Breakdown(
        steps=steps,
        step=step,
        sections=sections,
        by_rank=by_rank,
        ranks=ranks,
        communication=mean("communication_seconds", found),
        memory_share=max((w.sample.numbers.get("memory_share", 0.0) for w in found), default=0.0) or None,
        gpu_utilization=mean("gpu_utilization", found),
        mfu=mean_rate("mfu", found),
        rates=rates,
        stalls=sum(window.sample.numbers.get("checkpoint_seconds", 0.0) * window.steps for window in found),
    )


def mean(name: str, found: Sequence[Window]) -> float | None:
    """Returns the mean of a metric over the steps of all windows that have it."""
    known = [(window.sample.numbers[name], window.steps) for window in found if name in window.sample.numbers]
    return sum(value * steps for value, steps in known) / sum(steps for _, steps in known) if known else None


def mean_rate(name: str, found: Sequence[Window]) -> float | None:
    """Returns the mean of a rate over the time of all windows that have it: slow windows count for longer."""
    known = [
        (window.sample.numbers[name], window.steps * window.sample.numbers["step_seconds"])
        for window in found
        if name in window.sample.numbers
    ]
    return sum(rate * seconds for rate, seconds in known) / sum(seconds for _, seconds in known) if known else None


def rank_means(name: str, found: Sequence[Window], ranks: int) -> tuple[float, ...]:
    """Returns a metric's mean per rank over the windows that have it for so many ranks; () if none has."""
    sums, steps = array("d", bytes(8 * ranks)), 0
    for window in found:
        values = window.sample.by_rank.get(name, ())
        if len(values) == ranks:
            steps += window.steps
            for rank, value in enumerate(values):
                sums[rank] += value * window.steps
    return tuple(total / steps for total in sums) if steps else ()


def _by_rank(found: Sequence[Window]) -> tuple[dict[Section, tuple[float, ...]], int]:
    """Returns the sections by rank, and the number of ranks of the newest group."""
    ranks = next(
        (len(w.sample.by_rank["step_seconds"]) for w in reversed(found) if "step_seconds" in w.sample.by_rank), 0
    )
    measured = {section: rank_means(name, found, ranks) for section, name in METRICS.items()} if ranks else {}
    known = {section: values for section, values in measured.items() if values}
    if known:
        step = rank_means("step_seconds", found, ranks)
        known[Section.OTHER] = tuple(
            max(0.0, step[rank] - sum(values[rank] for values in known.values())) for rank in range(ranks)
        )
    return known, ranks
