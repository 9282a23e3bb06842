"""The training's part of a report: what its logged steps and traces show, section by section. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dtj import durations
from dtj.quantities import number, percent, size, step_time
from dtj.report.breakdown import METRICS, Breakdown, Window, following, windows
from dtj.report.breakdown import Section as Part
from dtj.report.evidence import Evidence
from dtj.report.figure import Bars, Chart, Column, Columns, Curve, Figure, Point, Section, Span
from dtj.report.heat import own_work, parts_by_rank
from dtj.report.samples import Sample
from dtj.report.scale import thinned
from dtj.report.traces import TraceOverlap

COLOURS = {
    Part.DATA: "data", Part.COMPUTE: "compute", Part.COMMUNICATION: "wire", Part.CHECKPOINT: "save",
    Part.OTHER: "other",
}  # fmt: skip
UNITS = (("tokens_per_second", "tokens/s"), ("images_per_second", "images/s"), ("samples_per_second", "samples/s"))
"""Rates by metric, the most specific one first."""
MOST_COLUMNS = 240
MOST_POINTS = 800
FEW_RANKS = 8
"""Number of ranks that have a curve each; of more ranks, the extremes are drawn."""
SHORTEST_VALIDATION = 0.01
"""Seconds. Without validation the trainer records some microseconds."""
Reading = Callable[[Sample], float | None]


def sections(facts: Evidence, mean: Breakdown | None, traces: Sequence[TraceOverlap] = ()) -> tuple[Section, ...]:
    """Returns the sections for which there are numbers. The loss is drawn below the timeline."""
    span = Span(begin=0.0, end=facts.end - facts.begin)
    found = windows(facts.samples)
    made = [
        _throughput(facts, mean, span),
        _steps(facts, mean, found, span),
        _heat(facts, mean, found, span),
        _overlap(facts, mean, traces, span),
        _saves(facts, mean, found, span),
        _memory(facts, span),
    ]
    return tuple(section for section in made if section is not None)


def curve(name: str, colour: str, samples: Sequence[Sample], reading: Reading, begin: float | None) -> Curve | None:
    """Returns a curve over time since `begin`, or over steps (None), broken between attempts; None without values."""
    pieces: list[list[Point]] = []
    attempt = None
    known = [(sample, value) for sample in samples if (value := reading(sample)) is not None]
    for sample, value in thinned(known, MOST_POINTS):
        if sample.attempt != attempt:
            pieces.append([])
            attempt = sample.attempt
        pieces[-1].append((sample.step if begin is None else sample.time - begin, value))
    return Curve(name=name, colour=colour, pieces=tuple(map(tuple, pieces))) if pieces else None


def metric(name: str) -> Reading:
    """Returns the reading of a metric of the group."""
    return lambda sample: sample.numbers.get(name)


def settled(facts: Evidence) -> Sequence[Sample]:
    """Returns the logged steps without the first of each attempt; all of them if there are no others."""
    return [sample for _, sample in following(facts.samples)] or facts.samples


def rate_name(facts: Evidence) -> tuple[str, str] | None:
    """Returns the metric and the unit of the most specific rate; None if no rate was logged."""
    return next((unit for unit in UNITS if any(unit[0] in sample.numbers for sample in facts.samples)), None)


def _throughput(facts: Evidence, mean: Breakdown | None, span: Span) -> Section | None:
    known = rate_name(facts)
    if known is None:
        return None
    figures: list[Figure] = []
    shown = settled(facts)
    for name, unit, text in ((*known, number), ("mfu", "MFU", percent)):
        drawn = curve(unit, "first", shown, metric(name), facts.begin)
        if drawn is not None:
            figures.append(Chart(title=f"{unit} of all ranks", span=span, curves=(drawn,), text=text))
    rates = [f"{number(mean.rates[name])} {unit}" for name, unit in UNITS if name in mean.rates] if mean else []
    if mean and mean.mfu is not None:
        rates.append(f"MFU {percent(mean.mfu)}")
    texts = (f"Mean over the time of {mean.steps} steps: {', '.join(rates)}.",) if mean and rates else ()
    return Section(heading="Throughput", texts=texts, figures=tuple(figures))


def _steps(facts: Evidence, mean: Breakdown | None, found: Sequence[Window], span: Span) -> Section | None:
    if mean is None:
        return None
    parts = tuple((part.value, COLOURS[part]) for part in mean.sections)
    columns = tuple(_column(group, tuple(mean.sections), facts.begin) for group in grouped(found, MOST_COLUMNS))
    shares = ", ".join(
        f"{step_time(seconds)} ({percent(seconds / mean.step)}) {part.value}" for part, seconds in mean.sections.items()
    )
    texts = [f"A step takes {step_time(mean.step)} in the mean of {mean.steps} steps and of all ranks: {shares}."]
    validation = sum(sample.numbers.get("evaluation_seconds", 0.0) for sample in facts.samples)
    if validation >= SHORTEST_VALIDATION:
        texts.append(f"Validation took {durations.format_duration(validation)} between the steps.")
    if Part.COMMUNICATION not in mean.sections and mean.ranks > 1:
        texts.append("Waits in collectives were not measured here, and are part of the computation.")
    bars = Bars(title="mean step", parts=parts, rows=(("all ranks", tuple(mean.sections.values())),), text=step_time)
    drawn = Columns(title="seconds of a step", span=span, parts=parts, columns=columns, text=step_time)
    return Section(heading="Step breakdown", texts=tuple(texts), figures=(bars, drawn))


def grouped(found: Sequence[Window], most: int) -> list[list[Window]]:
    """Returns about `most` groups of consecutive windows, none of which spans two attempts."""
    length = -(-len(found) // most)
    groups: list[list[Window]] = []
    for window in found:
        if groups and len(groups[-1]) < length and groups[-1][-1].sample.attempt == window.sample.attempt:
            groups[-1].append(window)
        else:
            groups.append([window])
    return groups


def _column(group: Sequence[Window], parts: Sequence[Part], begin: float) -> Column:
    """Returns the mean step of some windows, from the first one's begin to the last one's end."""
    steps = sum(window.steps for window in group)

    def mean(name: str) -> float:
        return sum(window.sample.numbers.get(name, 0.0) * window.steps for window in group) / steps

    values = [mean(METRICS[part]) for part in parts if part in METRICS]
    values.append(max(0.0, mean("step_seconds") - sum(values)))
    return Column(begin=group[0].begin - begin, end=group[-1].sample.time - begin, values=tuple(values))


def _heat(facts: Evidence, mean: Breakdown | None, found: Sequence[Window], span: Span) -> Section | None:
    if mean is None or mean.ranks < 2 or not mean.own:
        return None
    groups = grouped(found, MOST_COLUMNS // 2)
    figures = (own_work(groups, mean.ranks, span, facts.begin), parts_by_rank(mean))
    text = (
        "A rank's own work in a step is its data and its computation, without waits for other ranks. "
        "A rank that is dark all along keeps the others waiting."
    )
    return Section(heading="Ranks", texts=(text,), figures=figures)


def _overlap(facts: Evidence, mean: Breakdown | None, traces: Sequence[TraceOverlap], span: Span) -> Section | None:
    texts, figures = [], list[Figure]()
    drawn = [
        found
        for name, colour, reading in (
            ("hidden, of the communication", "first", _overlapped),
            ("exposed, of the step", "third", _exposed),
        )
        if (found := curve(name, colour, facts.samples, reading, facts.begin)) is not None
    ]
    if drawn and mean is not None and mean.communication is not None:
        exposed = mean.sections.get(Part.COMMUNICATION, 0.0)
        texts.append(
            f"Collectives are in flight for {step_time(mean.communication)} of a step, and exposed for "
            f"{step_time(exposed)}: {percent(mean.overlap)} of the communication is hidden behind computation."
        )
        figures.append(Chart(title="shares", span=span, curves=tuple(drawn), text="{:.0%}".format, top=1.0))
    if traces:
        figures.append(_traced(traces))
        sent, hidden = sum(one.communication for one in traces), sum(one.overlapped for one in traces)
        share = f"{percent(hidden / sent)} of the communication is hidden" if sent else "no collective is recorded"
        count = f"{len(traces)} trace{'' if len(traces) == 1 else 's'}"
        texts.append(f"By {count} of {traces[0].steps} steps from step {traces[0].first} on, {share}.")
    return Section(heading="Overlap", texts=tuple(texts), figures=tuple(figures)) if figures else None


def _overlapped(sample: Sample) -> float | None:
    sent, exposed = sample.numbers.get("communication_seconds"), sample.numbers.get("exposed_seconds")
    return max(0.0, 1 - exposed / sent) if sent and exposed is not None else None


def _exposed(sample: Sample) -> float | None:
    step, exposed = sample.numbers.get("step_seconds"), sample.numbers.get("exposed_seconds")
    return min(1.0, exposed / step) if step and exposed is not None else None


def _traced(traces: Sequence[TraceOverlap]) -> Bars:
    parts = (("computing alone", "compute"), ("both", "save"), ("exposed collectives", "wire"), ("neither", "other"))
    rows = []
    for one in thinned(traces, 32):
        both, either = one.overlapped, one.computation + one.exposed
        values = (one.computation - both, both, one.exposed, max(0.0, one.span - either))
        rows.append((f"rank {one.rank}", tuple(value / one.steps for value in values)))
    return Bars(title="seconds of a recorded step", parts=parts, rows=tuple(rows), text=step_time)


def _saves(facts: Evidence, mean: Breakdown | None, found: Sequence[Window], span: Span) -> Section | None:
    if mean is None or mean.stalls <= 0:
        return None
    columns = tuple(
        Column(begin=group[0].begin - facts.begin, end=group[-1].sample.time - facts.begin, values=(_stall(group),))
        for group in grouped(found, MOST_COLUMNS)
    )
    share = percent(mean.stalls / (mean.steps * mean.step))
    every = f" The job saves every {facts.every_steps} steps." if facts.every_steps else ""
    text = f"The training stood still for {durations.format_duration(mean.stalls)} in all, {share} of its steps.{every}"
    parts = ((Part.CHECKPOINT.value, COLOURS[Part.CHECKPOINT]),)
    drawn = Columns(title="standing still, in each column", span=span, parts=parts, columns=columns, text=step_time)
    return Section(heading="Saves", texts=(text,), figures=(drawn,))


def _stall(group: Sequence[Window]) -> float:
    return sum(window.sample.numbers.get("checkpoint_seconds", 0.0) * window.steps for window in group)


def _memory(facts: Evidence, span: Span) -> Section | None:
    charts, texts = [], []
    for name, title, text in (
        ("memory_bytes", "peak memory of a rank", "At its peak a rank had"),
        ("gpu_memory_bytes", "memory in use on a device", "At its fullest a device had"),
    ):
        drawn = list(_memory_curves(facts, name))
        if drawn:
            most = max(value for one in drawn for piece in one.pieces for _, value in piece)
            unit = 1024.0 ** max(0, int(math.log2(most or 1.0) // 10))
            charts.append(Chart(title=title, span=span, curves=tuple(drawn), text=size, unit=unit))
            texts.append(f"{text} {size(most)}.")
    shares = [share for sample in facts.samples if (share := sample.numbers.get("memory_share")) is not None]
    if shares:
        texts.append(f"The fullest rank had {percent(max(shares))} of its memory in use.")
    return Section(heading="Memory", texts=(" ".join(texts),), figures=tuple(charts)) if charts else None


def _memory_curves(facts: Evidence, name: str) -> Iterator[Curve]:
    ranks = max((len(sample.by_rank.get(name, ())) for sample in facts.samples), default=0)
    readings: list[tuple[str, str, Reading]] = []
    if 0 < ranks <= FEW_RANKS:
        palette = ("first", "second", "third", "save", "lost", "stop", "load", "unknown")
        readings = [(f"rank {rank}", palette[rank], _of_rank(name, rank)) for rank in range(ranks)]
    elif ranks:
        readings = [
            ("fullest rank", "first", lambda sample: max(sample.by_rank.get(name, ()), default=None)),
            ("emptiest rank", "second", lambda sample: min(sample.by_rank.get(name, ()), default=None)),
        ]
    else:
        readings = [("fullest rank", "first", metric(name))]
    for label, colour, reading in readings:
        if (drawn := curve(label, colour, facts.samples, reading, facts.begin)) is not None:
            yield drawn


def _of_rank(name: str, rank: int) -> Reading:
    def reading(sample: Sample) -> float | None:
        values = sample.by_rank.get(name, ())
        return values[rank] if rank < len(values) else None

    return reading
