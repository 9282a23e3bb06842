"""Runs the longest files first, and the tests marked `last(n)` after all others, the largest `n` at the very end."""

from __future__ import annotations

import os

import pytest

# With it, print() of several values is several writes, and the lines of processes that share a file mix.
os.environ.pop("PYTHONUNBUFFERED", None)

# Each takes half a minute or more. Begun last, one would keep a worker busy while the others have nothing left to do.
LONGEST = (
    "agent/test_mutations.py",
    "agent/test_saves.py",
    "client/test_digits.py",
    "client/test_examples.py",
    "client/test_tune_kills.py",
    "client/test_tune_run.py",
    "controlplane/test_failures.py",
    "controlplane/test_node.py",
    "controlplane/test_two_operators.py",
    "trainer/test_communication.py",
    "trainer/test_kills.py",
    "trainer/test_rendezvous.py",
    "trainer/test_snapshot_recovery.py",
    "trainer/test_strategies.py",
    "trainer/test_telemetry.py",
    "trainer/test_volume.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        mark = item.get_closest_marker("last")
        if mark:
            return int(mark.args[0])
        return -1 if "/".join(item.path.parts[-2:]) in LONGEST else 0

    items.sort(key=place)
