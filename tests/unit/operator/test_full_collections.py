"""Full garbage collections come at fixed times, and not with the growth of the cache."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref

import pytest

from dtj_operator import full_collections

GROWTH = """
import gc, sys
from dtj_operator import full_collections
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 and phase == "stop" else None)
if sys.argv[1] == "ours":
    full_collections.begin()
full.clear()
kept = [[{"status": [number]}] for number in range(200_000)]
print(len(full))
"""


def full_collections_of(whose: str) -> int:
    """Returns how many full collections a growth of 600,000 objects begins. A process of its own, for its settings."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, whose], capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    return int(done.stdout)


def test_growth_begins_no_full_collection() -> None:
    assert full_collections_of("ours") == 0
    assert full_collections_of("python's") > 0


def test_cycles_are_collected_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    monkeypatch.setattr(full_collections, "SECONDS", 0.01)

    async def main() -> None:
        node = Node()
        gc.collect()  # in the last generation from here on
        known = weakref.ref(node)
        del node
        task = asyncio.create_task(full_collections.run())
        async with asyncio.timeout(30):
            while known() is not None:
                await asyncio.sleep(0.01)
        task.cancel()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
