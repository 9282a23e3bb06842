"""Measures how late the event loop is: a reconcile, a large list or a scrape may block it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK_SECONDS = 0.1


async def measure(observe: Callable[[float], None]) -> None:
    """Reports after every tick by how many seconds it came late. Runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        observe(max(0.0, loop.time() - due))
