"""Formats step times, rates, shares and sizes for people. Pure."""

from __future__ import annotations

UNKNOWN = "-"
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def step_time(seconds: float) -> str:
    """Formats the time of a step: `0.42 ms`, `105 ms`, `2.31 s`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def number(value: float) -> str:
    """Formats a rate with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Formats a share; `-` if it is unknown."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def size(count: float) -> str:
    """Formats bytes: `512 bytes`, `1.5 GiB`."""
    power = 0
    while count >= 1024 and power < len(_SIZES) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.3g} {_SIZES[power]}" if count < 1000 else f"{count:.0f} {_SIZES[power]}"
