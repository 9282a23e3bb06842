"""The benchmark of sweeps: what a sweep must have, and that each disturbance happens once, in its order."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.tune import kills, results
from benchmarks.tune.sweep import TRIALS

RESULTS = [[number, "COMPLETE", 0.5] for number in range(TRIALS)]
KILLS = [[at, kind, "met"] for at, kind, _ in kills.PLAN]


def trial(arm: str, **more: Any) -> dict[str, Any]:
    calm = {
        "trial": 0, "complete": TRIALS, "pruned": 0, "failed": 0, "doubled": 0, "starts": TRIALS, "most": 4,
        "steps": 2400, "best": 0.5, "best_trial": 3, "seconds": 200.0, "results": RESULTS, "params": [{"lr": 0.1}],
    }  # fmt: skip
    return {"arm": arm, **calm, **({"kills": KILLS} if arm == results.KILLED else {}), **more}


@pytest.mark.parametrize(
    ("more", "missed"),
    [
        ({}, []),
        ({"kills": KILLS[1:]}, ["5 kills"]),
        ({"complete": TRIALS - 1}, [f"{TRIALS} results"]),
        ({"doubled": 1}, ["none doubled"]),
        ({"params": [{"lr": 0.2}]}, ["parameters and results of the undisturbed"]),
        ({"results": RESULTS[1:]}, ["parameters and results of the undisturbed"]),
        ({"best_trial": 4}, ["its best"]),
    ],
)
def test_killed_sweep_is_judged_beside_the_undisturbed_one(more: dict[str, Any], missed: list[str]) -> None:
    found = results.targets(trial(results.KILLED, **more), trial(results.CALM))
    assert [text.partition(":")[0] for text in found.split("; ") if text.endswith("missed")] == missed


@pytest.mark.parametrize(
    ("more", "missed"),
    [
        ({"complete": 20, "pruned": 20, "best": 0.505}, []),
        ({"complete": 21, "pruned": 19}, ["half stopped early"]),
        ({"complete": 10, "pruned": 30, "best": 0.5051}, ["best within 1 %"]),
        ({"complete": 10, "pruned": 29}, [f"{TRIALS} ended"]),
    ],
)
def test_early_stops_are_judged_by_their_share_and_the_best(more: dict[str, Any], missed: list[str]) -> None:
    found = results.targets(trial(results.ASHA, **more), trial(results.CALM))
    assert [text.partition(":")[0] for text in found.split("; ") if text.endswith("missed")] == missed


def test_table_has_a_row_for_each_sweep_and_the_kills() -> None:
    text = results.render("here", [trial(results.ASHA), trial(results.KILLED), trial(results.CALM)])
    assert [line.split(" | ")[0] for line in text.splitlines()[4:7]] == ["| undisturbed", "| killed 5 times", "| ASHA"]
    assert "Kills: sweep at 4 results (met); " in text
    assert "not measured yet" not in text
    assert "| killed 5 times | not measured yet |" in results.render("here", [trial(results.CALM)])


def test_plan_has_five_kills_in_the_order_of_results() -> None:
    assert sum(kind != kills.LOCKED for _, kind, _ in kills.PLAN) == results.KILLS
    moments = [at for at, *_ in kills.PLAN]
    assert moments == sorted(moments)
    assert moments[-1] < TRIALS - 4


def test_readme_has_what_was_measured() -> None:
    assert results.REPORT.readme.read_text() == results.REPORT.rendered()
