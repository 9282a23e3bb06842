"""Every arm of the throughput benchmark trains and has the losses of the bare loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainer.ranks import finished


def short_trial() -> None:
    from benchmarks.trainer import throughput
    from benchmarks.trainer.arms import installed
    from benchmarks.trainer.workloads import mlp
    from dtj_trainer.config import TrainerConfig
    from dtj_trainer.trainer import Trainer

    with Trainer(TrainerConfig(steps=1)) as trainer:
        # With 0 trials only the warm-up round runs; it raises if losses differ.
        rows = throughput.measure_in(trainer, 0, mlp(8, steps=10))
        assert list(rows) == installed()


@pytest.mark.torch
def test_all_arms_have_the_same_losses(tmp_path: Path) -> None:
    finished(2, short_trial, tmp_path)


def one_save_each(folder: str) -> None:
    from benchmarks.trainer.checkpoint import BEST_DCP, CheckpointBench, _stalls

    rows = _stalls(CheckpointBench(Path(folder), width=8), 1)
    assert BEST_DCP in rows
    assert all(len(stalls) == 1 for stalls in rows.values()), rows


@pytest.mark.torch
def test_every_way_to_save_runs_for_one_trial(tmp_path: Path) -> None:
    finished(2, one_save_each, tmp_path, str(tmp_path / "saves"))
