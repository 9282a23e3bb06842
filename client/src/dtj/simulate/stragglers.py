"""The slowest of N ranks: the expected maximum of N independent normal draws. Pure.

Source: David, Nagaraja, "Order Statistics", 3rd edition (2003), chapter 3. Real steps have a longer tail than the
normal distribution, and the same rank may be slow in every step: both cost more than this.
"""

from __future__ import annotations

import math
from functools import cache

_REACH = 9.0
"""Standard deviations of the integral; beyond lies less than 1e-18 of the distribution."""
_PARTS = 4000


@cache
def expected_maximum(draws: int) -> float:
    """Returns the expected largest of so many draws from the standard normal distribution.

    The integral of 1 - F(x)^n over x > 0, less that of F(x)^n over x < 0, by the trapezoidal rule.
    """
    if draws < 2:
        return 0.0
    step = _REACH / _PARTS
    total = 0.0
    for at in range(_PARTS + 1):
        x = at * step
        above = 0.5 * math.erfc(x / math.sqrt(2))
        value = -math.expm1(draws * math.log1p(-above)) - above**draws
        total += value * (0.5 if at in (0, _PARTS) else 1.0)
    return total * step
