"""Every arm of the throughput benchmark trains and has the losses of the bare loop."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.trainer.ranks import finished


def short_trial() -> None:
    from benchmarks.trainer import throughput
    from benchmarks.trainer.arms import installed
    from dtj_trainer.config import TrainerConfig
    from dtj_trainer.measure.bench.workloads import mlp
    from dtj_trainer.trainer import Trainer

    with Trainer(TrainerConfig(steps=1)) as trainer:
        # With 0 trials only the warm-up round runs; it raises if losses differ.
        rows = throughput.measure_in(trainer, 0, mlp(8, steps=10))
        assert list(rows) == installed()


@pytest.mark.thorough
@pytest.mark.torch
def test_all_arms_have_the_same_losses(tmp_path: Path) -> None:
    finished(2, short_trial, tmp_path)


def count_bytes(out: str) -> None:
    from benchmarks.trainer import tensor_bytes

    tables = tensor_bytes.measure(64)
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(tables))


@pytest.mark.torch
def test_bytes_of_each_arm_are_counted_by_kind(tmp_path: Path) -> None:
    from benchmarks.trainer.arms import BARE_DDP, BARE_FSDP, BARE_ZERO, MEMORY_ONLY, installed

    finished(2, count_bytes, tmp_path, str(tmp_path / "out.json"))
    tables = json.loads((tmp_path / "out.json").read_text())
    whole = 4 * (64 * 64 + 64) * 4 / 1e6  # MB of the weights
    held = {
        BARE_DDP: (1, 1, 2),
        "Trainer, `ddp`": (1, 1, 2),
        "Trainer, `ddp_scratch`": (1, 1, 2),
        BARE_ZERO: (1, 1, 1),
        "Trainer, `zero1`": (1, 1, 1),
        "Trainer, `zero2`": (1, 0.5, 1),
        BARE_FSDP: (0.5, 0.5, 1),
        "Trainer, `fsdp_scratch`": (0.5, 0.5, 1),
        "Trainer, `fsdp_scratch`, `cpu_offload: optimizer`": (1, 0.5, 1),
    }
    for arm, parts in held.items():
        for kind, part in zip(("parameters", "gradients", "optimizer"), parts, strict=True):
            assert tables[kind][arm] == pytest.approx([part * whole], rel=0.02), (arm, kind)
        assert tables["sum"][arm] == pytest.approx([sum(parts) * whole], rel=0.02)
    assert list(tables["sum"]) == [*installed(), *MEMORY_ONLY]


def one_save_each(folder: str) -> None:
    from benchmarks.trainer.checkpoint import BEST_DCP, CheckpointBench, _stalls

    rows = _stalls(CheckpointBench(Path(folder), width=8), 1)
    assert BEST_DCP in rows
    assert all(len(stalls) == 1 for stalls in rows.values()), rows


@pytest.mark.torch
def test_every_way_to_save_runs_for_one_trial(tmp_path: Path) -> None:
    finished(2, one_save_each, tmp_path, str(tmp_path / "saves"))
