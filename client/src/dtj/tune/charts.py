"""The drawings of a sweep's page, as SVG: history, importance, intermediate values, parallel coordinates. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from xml.sax.saxutils import quoteattr

from dtj.report.scale import thinned, value_axis, value_ticks
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
)
from dtj.tune.planner import TrialState
from dtj.tune.render import text
from dtj.tune.spec import ChoiceParameter, FloatParameter, IntParameter
from dtj.tune.study import Details

Place = Callable[[float], float]
HEIGHT, TOP = 240.0, 14.0
ROW = 26.0
MOST_LINES = 400
"""Lines of a drawing; of more trials, some are left out evenly."""
POINTS = 200
"""Points of a line."""
CHOICES = 12
"""Values of an axis that have a label."""
CLASSES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "gone", TrialState.FAILED: "bad"}


def style() -> str:
    """Returns the style of all drawings, light and dark."""

    def colours(theme: Mapping[str, str]) -> str:
        return (
            f"text{{fill:{theme['text']}}}.soft{{fill:{theme['soft']}}}.back{{fill:{theme['back']}}}"
            f".grid{{stroke:{theme['line']}}}.done{{fill:{theme['second']}}}.gone{{fill:{theme['other']}}}"
            f".bad{{fill:{theme['hot']}}}.bar{{fill:{theme['first']}}}.top{{stroke:{theme['first']}}}"
            f".line{{stroke:{theme['second']}}}.ended{{stroke:{theme['other']}}}"
        )

    shapes = (
        "polyline{fill:none}.top{stroke-width:2.5}.line{stroke-width:1.2;stroke-opacity:.6}"
        ".ended{stroke-width:1;stroke-opacity:.35}"
    )
    return f"{FONTS}{shapes}{colours(LIGHT)}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"


def history(trials: Sequence[Details], metric: str, *, maximize: bool) -> str:
    """Draws the value of each trial by its number, and the best value so far as a line."""
    known = [(one, value) for one in trials if (value := last_value(one)) is not None]
    if not known:
        return _empty("history", "no trial has a value yet")
    y, parts = _values([value for _, value in known], metric)
    most = max(1, len(trials) - 1)

    def x(number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / most

    best: list[tuple[float, float]] = []
    for one, value in known:
        title = f"trial {one.trial.number}, {one.trial.state.value}: {value:.6g}"
        parts.append(_dot(x(one.trial.number), y(value), CLASSES.get(one.trial.state, "gone"), title))
        if one.trial.state is TrialState.COMPLETE:
            better = not best or (value > best[-1][1] if maximize else value < best[-1][1])
            best.append((one.trial.number, value if better else best[-1][1]))
    if best:
        steps = [point for before, after in pairwise(best)
                 for point in ((x(int(before[0])), y(before[1])), (x(int(after[0])), y(before[1])))]  # fmt: skip
        last = (x(int(best[-1][0])), y(best[-1][1]))
        parts.append(curve("top", [*steps, last, (WIDTH - RIGHT, last[1])], "best so far"))
    for number in value_ticks(0, most, 10):
        parts.append(label(x(int(number)), TOP + HEIGHT + 18, f"{number:.0f}", "mid soft"))
    parts.append(label(WIDTH - RIGHT, TOP + HEIGHT + 36, "trial", "end soft"))
    return document("history", "History", f"{metric} of each trial", style(), parts, TOP + HEIGHT + 44)


def importance(shares: Mapping[str, float]) -> str:
    """Draws the share of each parameter in the spread of the results."""
    if not shares:
        return _empty("importance", "too few trials are complete")
    left = 180.0
    full = WIDTH - left - 70
    parts: list[str] = []
    for at, (name, share) in enumerate(sorted(shares.items(), key=lambda item: -item[1])):
        y = TOP + at * ROW
        parts += [
            label(left - 8, y + 15, name, "end"),
            box(left, y, max(1.0, full * share), ROW - 8, "bar", f"{name}: {share:.1%}"),
            label(left + full * share + 8, y + 15, f"{share:.0%}", "soft"),
        ]
    height = TOP + len(shares) * ROW + 8
    return document("importance", "Importance", "share of each parameter", style(), parts, height)


def intermediate(trials: Sequence[Details], metric: str, best: Details | None) -> str:
    """Draws the values of each trial by step, those of the best trial on top."""
    known = [one for one in trials if any(map(math.isfinite, one.values.values()))]
    if not known:
        return _empty("steps", "no intermediate value was reported")
    y, parts = _values([value for one in known for value in one.values.values() if math.isfinite(value)], metric)
    longest = max(max(one.values) for one in known) or 1

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / longest

    for one in sorted(thinned(known, MOST_LINES), key=lambda one: one is best):
        points = [(x(step), y(value)) for step, value in sorted(one.values.items()) if math.isfinite(value)]
        kind = "top" if one is best else "line" if one.trial.state is not TrialState.PRUNED else "ended"
        parts.append(curve(kind, thinned(points, POINTS), f"trial {one.trial.number}, {one.trial.state.value}"))
    for step in value_ticks(0, longest, 10):
        parts.append(label(x(step), TOP + HEIGHT + 18, f"{step:.0f}", "mid soft"))
    parts.append(label(WIDTH - RIGHT, TOP + HEIGHT + 36, "step", "end soft"))
    return document("steps", "Intermediate values", f"{metric} by step", style(), parts, TOP + HEIGHT + 44)


def parallel(
    trials: Sequence[Details],
    parameters: Mapping[str, FloatParameter | IntParameter | ChoiceParameter],
    metric: str,
    best: Details | None,
) -> str:
    """Draws a line through the parameters and the value of each trial, that of the best trial on top."""
    known = [(one, value) for one in trials if (value := last_value(one)) is not None and one.params]
    if not known:
        return _empty("parallel", "no trial has a value yet")
    axes = [*parameters, metric]
    top, bottom = TOP + 26, TOP + 26 + HEIGHT
    gap = (WIDTH - LEFT - RIGHT - 60) / max(1, len(axes) - 1)
    place, ticks = value_axis([value for _, value in known], _short)
    parts: list[str] = []
    for at, name in enumerate(axes):
        x = LEFT + at * gap
        parts += [label(x, TOP + 8, name, "mid"), stroke(x, top, x, bottom, "grid")]
        shown = ticks if at == len(axes) - 1 else list(_labels(parameters[name]))
        parts += [label(x + 5, bottom - level * HEIGHT + 4, tick, "soft") for level, tick in shown]
    for one, value in sorted(thinned(known, MOST_LINES), key=lambda item: item[0] is best):
        levels = [_level(parameters[name], one.params[name]) for name in parameters if name in one.params]
        points = [(LEFT + at * gap, bottom - level * HEIGHT) for at, level in enumerate([*levels, place(value)])]
        kind = "top" if one is best else "line" if one.trial.state is TrialState.COMPLETE else "ended"
        shown_params = ", ".join(f"{name}={text(given)}" for name, given in one.params.items())
        parts.append(curve(kind, points, f"trial {one.trial.number}: {shown_params}: {value:.6g}"))
    return document("parallel", "Parallel coordinates", "parameters and value", style(), parts, bottom + 16)


def last_value(one: Details) -> float | None:
    """Returns the value of a complete trial, or the last intermediate value of another one."""
    value = one.trial.value
    if value is None and one.values:
        value = one.values[max(one.values)]
    return value if value is not None and math.isfinite(value) else None


def _level(parameter: FloatParameter | IntParameter | ChoiceParameter, value: bool | int | float | str) -> float:
    """Returns the place of a value on the axis of its parameter, from 0 to 1."""
    if isinstance(parameter, ChoiceParameter):
        at = next((i for i, one in enumerate(parameter.values) if type(one) is type(value) and one == value), 0)
        return at / (len(parameter.values) - 1) if len(parameter.values) > 1 else 0.5
    assert not isinstance(value, str)
    low, high = parameter.min, parameter.max
    if high == low:
        return 0.5
    if parameter.log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _labels(parameter: FloatParameter | IntParameter | ChoiceParameter) -> Iterator[tuple[float, str]]:
    """Yields (place, text) of the ticks of a parameter's axis."""
    if isinstance(parameter, ChoiceParameter):
        for value in thinned(parameter.values, CHOICES):
            yield _level(parameter, value), text(value)
        return
    low, high = float(parameter.min), float(parameter.max)
    if high == low:
        yield 0.5, _short(low)
        return
    middle = math.sqrt(low * high) if parameter.log else (low + high) / 2
    for level, value in ((0.0, low), (0.5, middle), (1.0, high)):
        yield level, _short(value)


def _values(values: Sequence[float], metric: str) -> tuple[Place, list[str]]:
    """Returns the height of a value in the drawing, and the axis."""
    place, ticks = value_axis(values, _short)

    def y(value: float) -> float:
        return TOP + HEIGHT * (1 - place(value))

    parts = [label(LEFT - 8, TOP - 4, metric, "end")]
    for level, shown in ticks:
        at = TOP + HEIGHT * (1 - level)
        parts += [stroke(LEFT, at, WIDTH - RIGHT, at, "grid"), label(LEFT - 8, at + 4, shown, "end soft")]
    return y, parts


def _dot(x: float, y: float, kind: str, title: str) -> str:
    return f'<circle class={quoteattr(kind)} cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{clean(title)}</title></circle>'


def _short(value: float) -> str:
    return f"{value:.3g}"


def _empty(name: str, why: str) -> str:
    return document(name, name, why, style(), [label(LEFT, 24, why, "soft")], 36)
