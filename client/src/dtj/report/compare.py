"""Two runs beside each other: losses and rates by step, the mean step, and a table of differences. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dtj import durations
from dtj.quantities import UNKNOWN, number, percent, size, step_time
from dtj.report.breakdown import Breakdown
from dtj.report.breakdown import Section as Part
from dtj.report.evidence import Evidence
from dtj.report.figure import Bars, Chart, Figure, Section, Span
from dtj.report.samples import Sample
from dtj.report.sections import COLOURS, UNITS, Reading, curve, metric, settled
from dtj.report.verdict import Verdict

COLOUR_A, COLOUR_B = "first", "second"
HEAD = ("", "A", "B", "difference")


def comparison(
    a: Evidence, mean_a: Breakdown | None, bound_a: Verdict, b: Evidence, mean_b: Breakdown | None, bound_b: Verdict
) -> Section:
    """Returns the section that compares run B with run A."""
    figures: list[Figure] = []
    losses = _chart("loss", a, b, (a.samples, b.samples), lambda sample: sample.loss, "{:.4g}".format)
    rate = next(((name, unit) for name, unit in UNITS if _has(name, a) and _has(name, b)), None)
    rates = _chart(rate[1], a, b, (settled(a), settled(b)), metric(rate[0]), number) if rate else None
    figures += [chart for chart in (losses, rates) if chart is not None]
    if mean_a is not None and mean_b is not None:
        figures.append(_bars(mean_a, mean_b))
    return Section(
        heading="Compared runs",
        texts=(f"A is {a.name}: {bound_a.bound}. B is {b.name}: {bound_b.bound}.",),
        figures=tuple(figures),
        table=(HEAD, *_rows(a, mean_a, b, mean_b)),
    )


def _chart(
    title: str,
    a: Evidence,
    b: Evidence,
    samples: tuple[Sequence[Sample], Sequence[Sample]],
    reading: Reading,
    text: Callable[[float], str],
) -> Chart | None:
    """Returns two curves over the steps; None if neither run has a value."""
    drawn = (
        curve(f"A: {a.name}", COLOUR_A, samples[0], reading, None),
        curve(f"B: {b.name}", COLOUR_B, samples[1], reading, None),
    )
    known = tuple(one for one in drawn if one is not None)
    steps = [at for one in known for piece in one.pieces for at, _ in piece]
    if not steps:
        return None
    span = Span(begin=min(steps), end=max(steps), is_time=False)
    return Chart(title=f"{title} by step", span=span, curves=known, text=text)


def _has(name: str, facts: Evidence) -> bool:
    return any(name in sample.numbers for sample in facts.samples)


def _bars(a: Breakdown, b: Breakdown) -> Bars:
    shown = [part for part in Part if part in a.sections or part in b.sections]
    rows = tuple((key, tuple(mean.sections.get(part, 0.0) for part in shown)) for key, mean in (("A", a), ("B", b)))
    return Bars(title="mean step", parts=tuple((p.value, COLOURS[p]) for p in shown), rows=rows, text=step_time)


def _rows(a: Evidence, mean_a: Breakdown | None, b: Evidence, mean_b: Breakdown | None) -> Iterator[tuple[str, ...]]:
    """Yields a row for each value that one of the runs has."""
    step = _common_step(a, b)
    for (name, one, text), (_, two, _) in zip(_values(a, mean_a, step), _values(b, mean_b, step), strict=True):
        if one is not None or two is not None:
            shown = (UNKNOWN if value is None else text(value) for value in (one, two))
            yield (name, *shown, _change(one, two, is_share=text is percent))


def _values(
    facts: Evidence, mean: Breakdown | None, step: int | None
) -> list[tuple[str, float | None, Callable[[float], str]]]:
    """Returns (name, value, its format) of one run, the same names for every run."""
    return [
        (f"loss at step {step}", None if step is None else _loss(facts, step), "{:.4g}".format),
        ("time of the run", facts.end - facts.begin, durations.format_duration),
        ("ranks", float(facts.ranks), number),
        ("restarts", float(facts.restarts), number),
        ("goodput", facts.goodput, percent),
        *((unit, mean.rates.get(name) if mean else None, number) for name, unit in UNITS),
        ("MFU", mean.mfu if mean else None, percent),
        ("step", mean.step if mean else None, step_time),
        *((part.value, mean.sections.get(part) if mean else None, step_time) for part in Part),
        ("communication hidden", mean.overlap if mean else None, percent),
        ("peak memory of a rank", _most("memory_bytes", facts), size),
        ("memory in use on a device", _most("gpu_memory_bytes", facts), size),
    ]


def _change(one: float | None, two: float | None, *, is_share: bool) -> str:
    """Returns the second value less the first: shares in points, others in percent of the first."""
    if one is None or two is None:
        return ""
    if is_share:
        return f"{100 * (two - one):+.1f} points"
    if one == two:
        return "="
    return f"{100 * (two - one) / abs(one):+.1f} %" if one else UNKNOWN


def _common_step(a: Evidence, b: Evidence) -> int | None:
    """Returns the last step at which both runs have logged a loss."""
    steps = [{sample.step for sample in facts.samples if sample.loss is not None} for facts in (a, b)]
    return max(steps[0] & steps[1], default=None)


def _loss(facts: Evidence, step: int) -> float | None:
    """Returns the loss of the last attempt that logged the step: the one that counts."""
    return next((sample.loss for sample in reversed(facts.samples) if sample.step == step), None)


def _most(name: str, facts: Evidence) -> float | None:
    return max((sample.numbers[name] for sample in facts.samples if name in sample.numbers), default=None)
