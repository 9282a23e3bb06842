"""Axes: the ticks of a duration or a loss, and texts for them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
          3600, 7200, 14400, 21600, 43200, 86400)  # fmt: skip


def time_ticks(seconds: float, most: int = 9) -> list[tuple[float, str]]:
    """Returns (seconds, text) of the ticks of an axis that begins at 0."""
    days = math.ceil(seconds / most / 86400) * 86400
    step = next((step for step in _STEPS if seconds / step <= most), days)
    return [(at * step, _time_text(at * step, step)) for at in range(int(seconds / step) + 1)]


def _time_text(seconds: float, step: float) -> str:
    if step < 1:
        return f"{seconds:.3g} s"
    if step < 60 and seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if step >= 600 else f"{minutes}:{rest:02d} min"


def loss_axis(values: list[float]) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Returns the place of a loss on an axis from 0 (bottom) to 1, and (place, text) of its ticks.

    The axis is logarithmic where the losses span more than a factor of 30.
    """
    low, high = min(values), max(values)
    if low > 0 and high / low > 30:
        bottom, top = math.log10(low), math.log10(high)
        decades = [10.0**power for power in range(math.ceil(bottom), math.floor(top) + 1)]

        def logarithmic(value: float) -> float:
            return (math.log10(max(value, low)) - bottom) / (top - bottom)

        return logarithmic, [(logarithmic(value), f"{value:g}") for value in decades]
    low = min(low, 0.0)
    span = high - low or 1.0
    step = 10.0 ** math.floor(math.log10(span / 2))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
    first, last = math.ceil(low / step), math.floor((low + span) / step)
    return lambda value: (value - low) / span, [((at * step - low) / span, f"{at * step:g}")
                                                for at in range(first, last + 1)]  # fmt: skip


def number(value: float) -> str:
    """Formats a rate with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def thinned(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Returns at most about `most` items, evenly, with the first and the last one."""
    stride = max(1, math.ceil(len(items) / most))
    return items if stride == 1 else [*items[:-1:stride], items[-1]]
