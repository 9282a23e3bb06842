"""The page of memory in which a forked worker counts its optimizer steps, and which its agent reads.

The worker sends the page's descriptor (a memfd) with a report. Counting costs it no system call,
and the agent always reads the last step, even of a worker that stands still or was killed since.

    magic (8 bytes), optimizer steps (int64), times of the first and the last step (doubles, CLOCK_MONOTONIC)
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Optional

MAGIC = b"dtjstep1"
SIZE = 64
# Indexes of the page's 8-byte words.
STEPS_INDEX, FIRST_INDEX, LAST_INDEX = 1, 2, 3
_LAYOUT = struct.Struct("=8sqdd")


class StepCount(NamedTuple):
    """The optimizer steps of one rank in one attempt; times on the clock of time.monotonic()."""

    steps: int
    """The greatest number of steps that one optimizer has done."""
    first: float
    last: float
    """When any optimizer last did a step."""


def parse(page: bytes) -> Optional[StepCount]:
    """Returns the count; None if there is no step yet, or if the bytes are no such page."""
    if len(page) < _LAYOUT.size:
        return None
    magic, steps, first, last = _LAYOUT.unpack_from(page)
    if magic != MAGIC or not 0 < steps < 2**53 or not 0 < first <= last < 2**53:
        return None
    return StepCount(steps, first, last)
