"""Draws a timeline as one SVG: ranks above, loss by attempt below, then each recovery on an axis of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import quoteattr

from dtj import durations
from dtj.report.evidence import Evidence, Recovery
from dtj.report.samples import Sample
from dtj.report.scale import thinned, time_ticks, value_axis
from dtj.report.shapes import (
    DARK,
    FONTS,
    LEFT,
    LIGHT,
    RIGHT,
    WIDTH,
    box,
    clean,
    curve,
    document,
    label,
    stroke,
)  # fmt: skip
from dtj.report.timeline import PHASES, Row, Span, State, Timeline, cause_of
from dtj_contract import names

ROWS_HEIGHT = 400.0
"""The most that all rows take together; the rows of a larger group are thinner."""
ROW_HEIGHT = 20.0
LABEL_HEIGHT = 11.0
LOSS_HEIGHT = 150.0
RECOVERY_HEIGHT = 40.0
SHORTEST_PIXELS = 2.0
POINTS = 1500
"""The most points of the loss curve."""

CLASSES = {
    State.LOAD: "load", State.STEPS: "steps", State.LOST: "lost", State.STALL: "stall", State.STOP: "stop",
    State.WAIT: "wait", State.DOWN: "down", State.UNKNOWN: "unknown",
}  # fmt: skip
PHASE_NAMES = {
    "detect": "noticed", "stop": "stopped", "schedule": "pods", "rendezvous": "rendezvous", "load": "load",
    "firstStep": "first step",
}  # fmt: skip


def style() -> str:
    """Returns the colours, light and dark, and the fonts. Not all viewers of SVG know variables."""
    curves = ".curve{fill:none;stroke-width:1.5}.gone{stroke-dasharray:4 3}.mark{stroke-width:2;fill:none}"
    return f"{_colours(LIGHT)}{FONTS}{curves}@media (prefers-color-scheme:dark){{{_colours(DARK)}}}"


def _colours(theme: dict[str, str]) -> str:
    fills = "".join(f".{name}{{fill:{theme[name]}}}" for name in [*CLASSES.values(), "back", "soft"])
    return (
        f"text{{fill:{theme['text']}}}{fills}.grid{{stroke:{theme['line']}}}.mark{{stroke:{theme['down']}}}"
        f".curve{{stroke:{theme['steps']}}}.curve.gone{{stroke:{theme['lost']}}}"
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """The horizontal axis: seconds since the job's begin."""

    begin: float
    end: float

    def x(self, time: float) -> float:
        share = (min(max(time, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def svg(facts: Evidence, line: Timeline) -> str:
    """Returns the drawing as an SVG document without an XML declaration, so that HTML can hold it."""
    parts, y = timeline_parts(facts, line)
    return document("", f"Timeline of {facts.name} by rank", description(facts), style(), parts, y)


def timeline_parts(facts: Evidence, line: Timeline) -> tuple[list[str], float]:
    """Returns the shapes of the drawing, and its height."""
    axis = _Axis(facts.begin, facts.end)
    parts: list[str] = []
    y = 26.0
    parts += [label(LEFT, y, facts.name, "title"), label(LEFT, y + 18, headline(facts), "soft")]
    y += 30
    states = [state for state in State if any(span.state is state for row in line.rows for span in row.spans)]
    legend, y = _legend(states, y)
    parts += legend
    y += 18
    parts += [label(axis.x(at) + 2, y - 3, f"attempt {attempt}", "soft") for at, attempt in _apart(line, axis)]
    drawn, y = _rows(facts, line, axis, y)
    parts += drawn
    parts += _time_axis(axis, y)
    y += 34
    losses, y = _loss(facts, line, axis, y)
    parts += losses
    zooms, y = _recoveries(facts, y)
    parts += zooms
    return parts, y


def headline(facts: Evidence) -> str:
    """Returns the result of a job in one line."""
    took = durations.format_duration(facts.end - facts.begin)
    parts = [f"{facts.phase} after {took}" if facts.phase in (names.COMPLETE, names.FAILED) else facts.phase]
    if facts.step is not None:
        whole = f"/{facts.total_steps}" if facts.total_steps else ""
        parts.append(f"step {facts.step}{whole}" + (" of the last attempt" if facts.counted_in_attempt else ""))
    parts.append(f"{facts.ranks} ranks in {facts.replicas} pods")
    parts.append(f"{facts.restarts} restart{'' if facts.restarts == 1 else 's'}")
    if facts.goodput is not None:
        parts.append(f"goodput {100 * facts.goodput:.1f} %")
    return ", ".join(parts)


def description(facts: Evidence) -> str:
    """Returns the drawing in words."""
    sentences = [f"{facts.name}: {headline(facts)}.", *(recovery_text(one) + "." for one in facts.recoveries)]
    return " ".join(sentences)


def recovery_text(recovery: Recovery) -> str:
    """Returns a recovery in one line."""
    lost = "steps lost: unknown" if recovery.lost_steps is None else f"{recovery.lost_steps} steps lost"
    counted = "counted" if recovery.counted else "not counted"
    source = f", resumed from {recovery.source}" if recovery.source else ""
    cause = f"{recovery.reason} ({recovery.kind}, {counted})"
    return f"attempt {recovery.attempt} after {cause}: {durations.format_duration(recovery.total)}, {lost}{source}"


def _legend(states: Sequence[State], y: float) -> tuple[list[str], float]:
    parts, x, y = [], LEFT, y + 6
    for state in states:
        width = 22 + 6.4 * len(state.value)
        if x + width > WIDTH:
            x, y = LEFT, y + 18
        parts.append(f'<rect class="{CLASSES[state]}" x="{x:.0f}" y="{y:.0f}" width="11" height="11" rx="2"/>')
        parts.append(label(x + 16, y + 10, state.value, "soft"))
        x += width + 10
    return parts, y + 14


def _apart(line: Timeline, axis: _Axis) -> Iterator[tuple[float, int]]:
    """Yields the attempts whose labels do not cover one before them."""
    free = 0.0
    for at, attempt in line.attempts:
        if axis.x(at) >= free and axis.x(at) < WIDTH - 70:
            yield at, attempt
            free = axis.x(at) + 66


def _rows(facts: Evidence, line: Timeline, axis: _Axis, y: float) -> tuple[list[str], float]:
    height = min(ROW_HEIGHT, ROWS_HEIGHT / len(line.rows))
    gap = 2.0 if height >= 6 else 0.0
    parts, labelled, tops = [], y - LABEL_HEIGHT, {}
    for row in line.rows:
        tops.update(dict.fromkeys(range(row.first, row.last + 1), y + (height - gap) / 2))
        if y - labelled >= LABEL_HEIGHT:
            parts.append(label(LEFT - 8, y + (height - gap) / 2 + 4, row.label, "end"))
            labelled = y
        parts += [_span(row, span, axis, y, height - gap, facts.begin) for span in _by_importance(row.spans)]
        y += height
    for failure in facts.failures:
        causes = [cause_of(recovery, facts.failures) for recovery in facts.recoveries]
        at = next((_broke(line, r.attempt) for r, cause in zip(facts.recoveries, causes, strict=True)
                   if cause is failure), failure.time)  # fmt: skip
        rank = failure.rank if failure.rank is not None else (failure.ordinal or 0) * facts.processes
        if rank in tops:
            parts.append(_cross(axis.x(at), tops[rank], f"{failure.reason}: {failure.message}"))
    return parts, y


def _by_importance(spans: Sequence[Span]) -> list[Span]:
    """Returns the long states first: a short span is drawn wider than it is, above its neighbours."""
    return sorted(spans, key=lambda span: span.state not in (State.STEPS, State.LOAD))


def _broke(line: Timeline, attempt: int) -> float:
    """Returns when the attempt before this one broke."""
    spans = line.rows[0].spans
    return next((span.begin for span in spans if span.attempt == attempt), spans[-1].end)


def _span(row: Row, span: Span, axis: _Axis, y: float, height: float, zero: float) -> str:
    left, right = axis.x(span.begin), axis.x(span.end)
    took = durations.format_duration(span.end - span.begin)
    title = f"{row.label}, attempt {span.attempt}: {span.state.value}, {took} from {span.begin - zero:.1f} s"
    return box(left, y, max(right - left, SHORTEST_PIXELS), max(height, 0.5), CLASSES[span.state], title)


def _cross(x: float, y: float, title: str) -> str:
    path = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
    return f'<path class="mark" d={quoteattr(path)}><title>{clean(title)}</title></path>'


def _time_axis(axis: _Axis, y: float) -> list[str]:
    parts = [stroke(LEFT, y + 2, WIDTH - RIGHT, y + 2, "grid")]
    for at, text in time_ticks(axis.end - axis.begin):
        x = axis.x(axis.begin + at)
        parts += [stroke(x, y + 2, x, y + 6, "grid"), label(x, y + 19, text, "soft mid")]
    return parts


def _loss(facts: Evidence, line: Timeline, axis: _Axis, y: float) -> tuple[list[str], float]:
    known = [sample for sample in facts.samples if sample.loss is not None]
    if not known:
        return [label(LEFT, y + 12, "no loss was recorded", "soft")], y + 30
    place, ticks = value_axis([sample.loss for sample in known if sample.loss is not None])
    bottom = y + LOSS_HEIGHT
    parts = [label(LEFT - 8, y + 4, "loss", "end")]
    for at, text in ticks:
        level = bottom - at * (LOSS_HEIGHT - 14)
        parts += [stroke(LEFT, level, WIDTH - RIGHT, level, "grid"), label(LEFT - 8, level + 4, text, "end soft")]
    lost = [span for span in line.rows[0].spans if span.state is State.LOST]

    def is_lost(sample: Sample) -> bool:
        return any(span.begin < sample.time <= span.end and span.attempt == sample.attempt for span in lost)

    shown = thinned(known, POINTS)
    for (attempt, gone), group in groupby(shown, key=lambda sample: (sample.attempt, is_lost(sample))):
        points = [(axis.x(s.time), bottom - place(s.loss or 0.0) * (LOSS_HEIGHT - 14)) for s in group]
        title = f"loss of attempt {attempt}" + (", steps lost" if gone else "")
        parts.append(curve("curve gone" if gone else "curve", points, title))
    return parts, bottom + 24


def _recoveries(facts: Evidence, y: float) -> tuple[list[str], float]:
    """Returns each recovery on an axis of its own, because most are too short for that of the job."""
    parts: list[str] = []
    for recovery in facts.recoveries:
        parts.append(label(LEFT, y + 10, recovery_text(recovery)))
        x, full = LEFT, WIDTH - LEFT - RIGHT
        for phase, seconds in recovery.seconds.items():
            width = full * seconds / recovery.total if recovery.total else 0.0
            text = f"{PHASE_NAMES.get(phase, phase)} {durations.format_duration(seconds)}"
            if width >= 1:
                parts.append(box(x, y + 16, width, 16, CLASSES[PHASES[phase]], text))
            if width >= 7 * len(text):
                parts.append(label(x + 4, y + 28, text))
            x += width
        y += RECOVERY_HEIGHT
    return parts, y + 6
