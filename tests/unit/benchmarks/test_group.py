"""The benchmark of large groups: its table, and that one trial measures all of it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.group.measures import sockets, virtual
from benchmarks.group.results import render


def trial(kind: str, members: int, seconds: float, **more: Any) -> dict[str, Any]:
    common = {"arm": f"{kind} {members}", "trial": 0, "kind": kind, "members": members}
    return {**common, "seconds": seconds, "messages": 6.0, **more}


@pytest.mark.parametrize(
    ("seconds", "resident", "target"),
    [
        (2.0, 25_000_000, "≤ 2 s: met; ≤ 25.1 MB: met"),
        (2.1, 25_000_000, "≤ 2 s: missed; ≤ 25.1 MB: met"),
        (2.0, 25_200_000, "≤ 2 s: met; ≤ 25.1 MB: missed"),
    ],
)
def test_512_members_have_a_target_for_the_worst_time_and_for_memory(
    seconds: float, resident: int, target: str
) -> None:
    found = [trial("sockets", 512, 0.5, bytes=0), trial("sockets", 512, seconds, bytes=resident)]
    assert f"| {target} |" in render("here", found)


def test_growth_is_that_beside_the_smallest_group() -> None:
    found = [trial("sockets", 512, 1.0, bytes=24_480_000), trial("sockets", 64, 0.1, bytes=20_000_000)]
    assert "| 24.5 MB | 10.0 kB |" in render("here", found)


def test_virtual_time_has_no_memory() -> None:
    assert "| virtual 4096 | 1 | 4.00 | 4.00 | 6.0 |  |  | ≤ 5 s: met |" in render(
        "here", [trial("virtual", 4096, 4.0)]
    )


def test_trial_over_sockets_measures_time_messages_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.group.measures.IDLE_SECONDS", 0.0)
    found = sockets(8)
    assert found["seconds"] > 0
    assert 2 <= found["messages"] <= 7, found
    assert found["bytes"] > 1_000_000


def test_trial_in_virtual_time_measures_time_and_messages() -> None:
    found = virtual(64)
    assert 0 < found["seconds"] < 5
    assert 2 <= found["messages"] <= 7, found
