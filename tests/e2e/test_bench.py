"""`dtj bench --link cluster`: each trial is a job of real pods, and none of them is left."""

from __future__ import annotations

import json
from pathlib import Path

from dtj.main import main
from tests.e2e.kit import DTJ, Kubectl

SMALL = ["--model", "mlp:width=64", "--batch", "4", "--steps", "4", "--warmup", "2", "--repeats", "1"]


def test_bench_measures_pods_and_removes_them(kubectl: Kubectl, images: dict[str, str], tmp_path: Path) -> None:
    place = ["--link", "cluster", "--image", images["trainer"], "-n", kubectl.namespace, "-o", str(tmp_path)]
    arms = ["--world", "1,2", "--strategy", "ddp", "--arm", "fsdp2"]
    assert main(["bench", *place, *arms, *SMALL]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["arm"], row["world"], row["trials"]) for row in rows] == [
        ("ddp", 1, 1), ("fsdp2", 1, 1), ("ddp", 2, 1), ("fsdp2", 2, 1)
    ]  # fmt: skip
    assert {row["cores"] for row in rows} == {"pods of kind"}
    assert rows[3]["communication"] > 0
    assert rows[2]["loss"] == rows[3]["loss"]
    assert kubectl.list(DTJ) == []
    assert kubectl.list("pods") == []
