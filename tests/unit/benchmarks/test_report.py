"""The benchmarks' report: ratios per trial, targets in the right direction, no figure typed by hand."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import torch

import benchmarks
from benchmarks.report import Ratio, Table, put, ratios, render
from benchmarks.trainer.throughput import turn
from dtj_trainer.measure.bench.workloads import same_losses


def test_disturbance_that_lasts_a_whole_trial_cancels_in_the_ratio() -> None:
    rows = {"bare": [10.0, 40.0, 10.0], "ours": [10.0, 40.0, 20.0]}
    assert ratios(rows, "ours", "bare", "throughput") == [1.0, 1.0, 0.5]
    text = render(
        Table(title="t", unit="ms", ratio="throughput", beside={"*": "bare"}, target={"ours": 0.99}), rows, "here"
    )
    assert "| ours | 20.0 | 40.0 | **1.00x** | 0.75 to 1.00 | bare | ≥ 0.99x: met |" in text


@pytest.mark.parametrize(
    ("ratio", "more", "ours", "verdict"),
    [
        ("throughput", False, 9.0, "≥ 1x: met"),
        ("throughput", False, 11.0, "≥ 1x: missed"),
        ("cost", False, 9.0, "≤ 1x: met"),
        ("cost", False, 11.0, "≤ 1x: missed"),
        ("share", True, 11.0, "≥ 1x: met"),
        ("share", True, 9.0, "≥ 1x: missed"),
        ("none", True, 1.1, "≥ 1: met"),
        ("none", True, 0.9, "≥ 1: missed"),
        ("none", False, 0.9, "≤ 1: met"),
        ("none", False, 1.1, "≤ 1: missed"),
    ],
)
def test_target_is_met_on_the_right_side(ratio: Ratio, more: bool, ours: float, verdict: str) -> None:
    table = Table(title="t", unit="u", ratio=ratio, more_is_better=more, beside={"*": "bare"}, target={"ours": 1.0})
    assert verdict in render(table, {"bare": [10.0], "ours": [ours]}, "here")


FOLDERS = sorted(path.parent for path in Path(benchmarks.__path__[0]).glob("*/results.py"))


def test_every_benchmark_with_results_has_a_page() -> None:
    assert {path.parent for path in Path(benchmarks.__path__[0]).glob("*/results.json")} <= set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_readme_has_the_figures_of_the_results(folder: Path) -> None:
    report = importlib.import_module(f"benchmarks.{folder.name}.results").REPORT
    assert report.rendered() == report.readme.read_text(), f"run python -m benchmarks.{folder.name} --render"


def test_arm_without_a_measured_reference_has_no_verdict() -> None:
    table = Table(
        title="t", unit="ms", ratio="throughput", beside={"*": "bare", "ours": "tuned"}, target={"ours": 0.99}
    )
    text = render(table, {"bare": [10.0], "ours": [9.0]}, "2026-11-22: here.")
    assert "| ours | 9.00 | 9.00 | not measured yet |  | tuned | not measured yet |" in text
    assert "| tuned | not measured yet |" in text
    assert "met" not in text
    assert "2026-11-22" in text, "what was measured keeps its date"


def test_missing_marker_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="<!-- stall -->"):
        put("no markers here", "stall", "table")


def test_order_of_the_arms_rotates_and_is_reversed_every_second_trial() -> None:
    names = ["a", "b", "c"]
    assert [turn(names, trial) for trial in (1, 2, 3)] == [["a", "c", "b"], ["c", "a", "b"], ["c", "b", "a"]]


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ([2.0, 1.0, 0.5001], "loss 0.5001 in step 2"),
        ([2.0, math.nan, 0.5], "loss nan in step 1"),
        ([2.0, 1.0], "did 2 steps and the bare loop 3"),
    ],
)
def test_arm_with_other_losses_is_rejected(got: list[float], message: str) -> None:
    wanted = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    same_losses("peer", wanted + 9e-6, wanted)
    with pytest.raises(RuntimeError, match=message):
        same_losses("peer", torch.tensor(got, dtype=torch.float64), wanted)
