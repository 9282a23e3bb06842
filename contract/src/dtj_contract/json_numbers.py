"""Numbers that every JSON reader agrees on: finite, and not too long."""

from __future__ import annotations

from typing import Any, Optional

MAX_INT = 2**53
"""JSON numbers beyond this lose digits in readers that hold them as floats."""


def finite_number(value: Any, largest: float = 1e308) -> Optional[float]:
    """Returns `value` if it is a number of at most `largest`; None for anything else, booleans included.

    An int stays an int. JSON can hold NaN, Infinity and an int of 400 digits, which is longer than
    any float.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= largest else None


def count(value: Any) -> Optional[int]:
    """Returns `value` if it is a whole number from 0 to below MAX_INT; None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_INT
    return int(value) if is_count else None
