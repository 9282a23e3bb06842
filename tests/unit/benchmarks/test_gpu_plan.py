"""The whole plan of the GPU benchmark runs, here with a toy model on the CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.measures import BARE, COMPILED, EDGE, FIRST, FLOOR, FOUND, OURS, SAVE, TF32
from benchmarks.gpu.results import TABLES
from tests.unit.trainer.ranks import finished, ranks

ROWS = {
    "mfu": {BARE, OURS, COMPILED},
    "tokens": {BARE, OURS, COMPILED, TF32},
    "step": {BARE, OURS, COMPILED},
    "precision": {TF32, OURS},
    "recompute-memory": {"none", "block", "selective"},
    "recompute-time": {"none", "block", "selective"},
    "edge": {FOUND, EDGE},
    "stall": {FLOOR, SAVE, FIRST},
    "state": {"weights and AdamW"},
}


@pytest.mark.thorough
@pytest.mark.torch
def test_every_table_has_all_its_rows_with_finite_numbers(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    arguments = ["--toy", "--trials", "1", "--peak-flops", "1e12", "--out", str(out), "--volume", str(tmp_path)]
    printed = finished(1, ["benchmarks.gpu", *arguments], tmp_path)
    results = json.loads(out.read_text())
    assert results.keys() == TABLES.keys() == ROWS.keys()
    for key, table in TABLES.items():
        assert f"**{table.title}**" in printed
        rows = results[key]["rows"]
        assert rows.keys() == ROWS[key]
        for arm, values in rows.items():
            assert values, (key, arm)
            assert all(math.isfinite(v) and v > 0 for v in values), (key, arm, values)
            assert f"| {arm} |" in printed
    assert results["edge"]["rows"][EDGE] == [3.0], "the toy's search ends at three sequences, and all fit"
    assert not list(tmp_path.glob("dtj-benchmark-*")), "no checkpoint is left behind"


@pytest.mark.torch
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_benchmark_without_a_gpu_is_an_error_and_measures_nothing(tmp_path: Path) -> None:
    with ranks(1, ["benchmarks.gpu"], tmp_path) as group:
        assert group.wait() == [2], group.everything()
        assert "torch sees no CUDA device here" in group.output()
        assert "|---" not in group.output()
