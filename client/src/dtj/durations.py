"""Parses and formats durations as kubectl and people write them. Pure."""

from __future__ import annotations

import re

from dtj.errors import InputError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse(text: str, flag: str) -> float:
    """Parses `90s`, `10m`, `1h30m` or a plain number into seconds.

    Raises InputError that names the flag.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    raise InputError(f"{flag} {text}: write a duration such as 90s, 10m or 1h30m")


def format_duration(seconds: float) -> str:
    """Formats a measured duration: `0.35 s`, `42 s`, `3 m 05 s`, `2 h 10 m`."""
    return f"{seconds:.2f} s" if seconds < 10 else format_estimate(seconds)


def format_estimate(seconds: float) -> str:
    """Formats an estimated duration: `7 s`, `42 s`, `3 m 05 s`, `2 h 10 m`."""
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"
