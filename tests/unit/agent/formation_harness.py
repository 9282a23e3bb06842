"""Groups with spares, and elastic ones, as the tests of their formation see them."""

from __future__ import annotations

from typing import Any

from dtj_agent.group.group_spec import ElasticLimits
from tests.unit.agent.coordinator_harness import CoordinatorHarness


def started(harness: CoordinatorHarness) -> list[list[int]]:
    """Returns the members of each attempt that was started, by node rank."""
    attempts: dict[int, list[tuple[int, int]]] = {}
    for ordinal, message in harness.messages("start"):
        assert message["nodes"] >= message["nodeRank"]
        attempts.setdefault(message["attempt"], []).append((message["nodeRank"], ordinal))
    ranks = [sorted(members) for _, members in sorted(attempts.items())]
    assert all([rank for rank, _ in members] == list(range(len(members))) for members in ranks)
    return [[ordinal for _, ordinal in members] for members in ranks]


def recoveries(harness: CoordinatorHarness) -> list[tuple[str, str, bool]]:
    return [(r["kind"], r["reason"], r["counted"]) for r in harness.coordinator.history.recoveries]


def reasons(harness: CoordinatorHarness) -> list[str]:
    return [event["reason"] for event in harness.coordinator.history.events]


def with_spare(replicas: int = 2, spares: int = 1, **spec: Any) -> CoordinatorHarness:
    """Returns a group that trains, with its spares idle."""
    harness = CoordinatorHarness(replicas, spares=spares, **spec)
    for ordinal in range(replicas + spares):
        harness.join(ordinal)
    return harness


def elastic(
    replicas: int = 3, least: int = 2, most: int = 0, wait: float = 10.0, joined: int | None = None, **spec: Any
) -> CoordinatorHarness:
    """Returns a group that trains with all its pods."""
    harness = CoordinatorHarness(replicas, elastic=ElasticLimits(least, most, wait), **spec)
    for ordinal in range(replicas if joined is None else joined):
        harness.join(ordinal)
    return harness
