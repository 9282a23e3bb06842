"""Reads values of any type from a status or a metrics file: a value of another type counts as absent. Pure."""

from __future__ import annotations

import math

from dtj_core.plan.model import Object


def number(value: object) -> float | None:
    """Returns a finite number; None for anything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or math.isnan(value):
        return None
    return float(value)


def integer(value: object) -> int | None:
    """Returns a whole number, 0 or more; None for anything else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) and 0 <= found < 2**53 else None


def text(value: object) -> str:
    """Returns a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Object:
    """Returns an object of JSON; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Object]:
    """Returns the objects of a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
