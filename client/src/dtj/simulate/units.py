"""Parses what the flags of `dtj simulate` measure: rates, durations, lists of ranks. Pure."""

from __future__ import annotations

import math
import re

from dtj.errors import InputError

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
MOST_RANKS = 10_000_000


def seconds(text: str, flag: str) -> float:
    """Parses `50us`, `1.5ms`, `90s`, `10m`, `500h`, `30d`. Raises InputError that names the flag."""
    found = re.fullmatch(rf"{_NUMBER}(us|µs|ms|s|m|h|d)", text.strip())
    if found is None:
        raise InputError(f"{flag} {text}: write a duration with its unit, such as 50us, 1.5ms, 90s, 10m, 500h or 30d")
    return float(found[1]) * _SECONDS[found[2]]


def rate(text: str, flag: str) -> float:
    """Parses `25Gbit/s` or `3GB/s` into bytes per second. Raises InputError that names the flag."""
    found = re.fullmatch(rf"{_NUMBER}([kMGT]?)(bit|B)/s", text.strip())
    value = float(found[1]) * _PREFIX[found[2]] / (8 if found[3] == "bit" else 1) if found else 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{flag} {text}: write a rate above 0, such as 25Gbit/s, 200Mbit/s or 3GB/s")
    return value


def positive(text: str, flag: str, example: str) -> float:
    """Parses a finite number above 0. Raises InputError that names the flag."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{flag} {text}: write a number above 0, such as {example}")
    return value


def ranks(text: str) -> list[int]:
    """Parses `1,2,4,8,...,4096` into rising numbers; `...` continues the factor of the two numbers before it.

    Raises InputError.
    """
    out: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for at, part in enumerate(parts):
        if part in ("...", "…"):
            last = parts[at + 1] if at + 1 < len(parts) else ""
            if len(out) < 2 or not last.isdecimal() or out[-1] % out[-2]:
                raise InputError(
                    f"--ranks {text}: write two numbers before `...` of which one is a multiple of the other, and the "
                    "last number after it, such as 1,2,...,64"
                )
            factor = out[-1] // out[-2]
            while out[-1] * factor < int(last):
                out.append(out[-1] * factor)
        elif part.isdecimal() and (out[-1] if out else 0) < int(part) <= MOST_RANKS:
            out.append(int(part))
        else:
            raise InputError(
                f"--ranks {text}: write whole numbers from 1 to {MOST_RANKS} that rise, such as 1,2,4,8,...,4096"
            )
    return out
