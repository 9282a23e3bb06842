"""Full garbage collections at fixed times.

The interpreter begins one whenever the objects that have survived the younger collections are a quarter of all.
A question to an agent waits for a minute, so its objects are among these. With 1,000 running jobs, a full collection
blocked the event loop for 0.3 s every 40 s, and with 10,000 for 1 to 4 s every 10 s; each found about 5 objects.
"""

from __future__ import annotations

import asyncio
import gc

SECONDS = 3600.0
"""Cycles of objects that have survived the younger collections stay in memory for so long at most."""
NEVER = 1_000_000_000


def begin() -> None:
    """Takes all objects that exist out of later collections, and turns the interpreter's own full ones off.

    Call it once the caches are filled: what was read until then stays for long.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def run() -> None:
    """Collects at fixed times, until cancelled."""
    while True:
        await asyncio.sleep(SECONDS)
        gc.collect()
