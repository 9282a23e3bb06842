"""Results that survive an interrupted run, and arms that are measured one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger


def done(path: Path) -> list[tuple[str, int]]:
    return [(trial["arm"], trial["trial"]) for trial in json.loads(path.read_text())["kill"]["trials"]]


def trial(arm: str, number: int) -> dict[str, Any]:
    return {"arm": arm, "trial": number, "seconds": 1.0}


def test_trial_is_in_the_file_as_soon_as_it_ends_and_a_second_run_continues(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = Ledger(path)
    first.begin("kill", 2, "here")
    first.add("kill", trial("dtj", 0))
    assert done(path) == [("dtj", 0)]
    second = Ledger(path)
    assert second.has("kill", "dtj", 0)
    assert not second.has("kill", "torchrun", 0)
    second.begin("kill", 99, "there")
    second.add("kill", trial("torchrun", 0))
    assert done(path) == [("dtj", 0), ("torchrun", 0)]
    assert second.circumstances("kill") == first.circumstances("kill")


def test_arm_that_is_measured_again_leaves_the_results_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    ledger = Ledger(path)
    ledger.begin("kill", 1, "here")
    for arm in ("dtj", "torchrun"):
        ledger.add("kill", trial(arm, 0))
    ledger.forget("kill", ["dtj"])
    assert done(path) == [("torchrun", 0)]
    assert not Ledger(path).has("kill", "dtj", 0)
    ledger.forget("kill", ["torchrun"])
    assert json.loads(path.read_text()) == {}, "what is measured next has its own day and load"


def test_trials_without_a_file_are_kept_in_memory() -> None:
    ledger = Ledger(None)
    ledger.begin("kill", 1, "here")
    ledger.add("kill", trial("dtj", 0))
    assert ledger.has("kill", "dtj", 0)
