"""The benchmark of the model: its points, its errors, and that one rank's profile and two links are all it gets."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.simulation import efficiency
from benchmarks.simulation.points import POINTS, Point, modelled
from benchmarks.simulation.results import errors, render

NODE = {"latency_seconds": 0.001, "bytes_per_second": 1e6}
LOCAL = {"latency_seconds": 0.0, "bytes_per_second": 1e9}
PROFILE = {
    "samples": 4, "seconds": {"data": 0.0, "forward": 0.1, "backward": 0.2, "optimizer": 0.1}, "gradient_bytes": 1e6,
}  # fmt: skip


def trial(arm: str, number: int, measured: float, model: float) -> dict[str, Any]:
    return {"arm": arm, "trial": number, "measured": measured, "modelled": model}


def test_points_are_eight_and_more_with_different_names() -> None:
    assert len({point.name for point in POINTS}) == len(POINTS) >= 8


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (Point(200, 1), 0.4),
        (Point(200, 2), 0.4 + 2 * 0.501),
        (Point(200, 4), 0.4 + 6 * 0.251),
        (Point(200, 4, "interleaved"), 0.4 + 6 * 0.501),
    ],
    ids=lambda value: value.name if isinstance(value, Point) else None,
)
def test_point_is_modelled_with_its_ranks_on_two_nodes(point: Point, expected: float) -> None:
    assert modelled(point, PROFILE, NODE, LOCAL) == pytest.approx(expected)


def test_fastest_round_counts_on_both_sides() -> None:
    name = POINTS[1].name
    found = errors([trial(name, 0, 0.2, 0.12), trial(name, 1, 0.1, 0.11)])
    assert found == {name: (0.1, 0.2, 0.11, pytest.approx(0.1))}


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        ((1.1, 0.99), "mean error 5.5 % (≤ 7 %: met), worst error 10.0 % (≤ 15 %: met)"),
        ((1.2, 0.99), "mean error 10.5 % (≤ 7 %: missed), worst error 20.0 % (≤ 15 %: missed)"),
        ((0.82, 1.0), "mean error 9.0 % (≤ 7 %: missed), worst error 18.0 % (≤ 15 %: missed)"),
    ],
)
def test_mean_and_worst_error_have_targets(models: tuple[float, float], verdict: str) -> None:
    found = [trial(point.name, 0, 1.0, model) for point, model in zip(POINTS, models, strict=False)]
    assert f"2 points: {verdict}." in render("here", found)


def test_efficiency_is_of_the_fastest_rounds_and_modelled_where_nothing_was_measured() -> None:
    trials = [
        {
            "arm": "2 ranks",
            "trial": 0,
            "one": 0.1,
            "measured": 0.2,
            "modelled_one": 0.1,
            "modelled": 0.125,
            "levels": 0.1,
        },
        {
            "arm": "2 ranks",
            "trial": 1,
            "one": 0.12,
            "measured": 0.16,
            "modelled_one": 0.1,
            "modelled": 0.125,
            "levels": 0.1,
        },
        {
            "arm": "256 ranks",
            "trial": 0,
            "one": 0.1,
            "measured": None,
            "modelled_one": 0.1,
            "modelled": 0.2,
            "levels": 0.125,
        },
    ]
    two, many = efficiency.efficiencies(trials)
    assert (two.measured, two.modelled) == (pytest.approx(0.625), pytest.approx(0.8))
    assert (many.measured, many.quartiles, many.modelled, many.levels) == (None, None, 0.5, pytest.approx(0.8))
    text = efficiency.render("here", trials)
    assert "| 2 | 62 % |" in text
    assert "| 256 |  |  | 50 % | 80 % | 63 % |" in text
