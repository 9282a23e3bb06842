"""How long this process has been alive: the part of a recovery that a user's imports cost."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_age() -> float | None:
    """Seconds since the kernel started this process; None where there is no /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5): ticks after boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
