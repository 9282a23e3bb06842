"""A step equals a single process's on the whole batch, for every cut by ranks and micro-batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dtj_trainer.data.loader import BatchPartition, LoaderConfig, StreamOrder, batches
from dtj_trainer.data.order import DataOrder
from dtj_trainer.data.source import TensorData
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_batch_equivalence import CUTS, PLAIN, exact, reads, saved_early
from tests.unit.trainer.ranks_shared import Numbers


@pytest.mark.torch
@pytest.mark.parametrize("world", [2, 4])
def test_accumulated_clipped_step_equals_the_step_of_a_single_process(tmp_path: Path, world: int) -> None:
    """The other ranks build other weights: all ranks begin with rank 0's."""
    finished(world, exact, tmp_path, str(tmp_path / "out.json"), LOCAL_WORLD_SIZE="2")
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert len(outcome) == len(PLAIN) * len(CUTS)
    for case in outcome:
        assert case["clipped"], f"the norm is larger than what it is clipped to: {case}"
        for what in ("losses", "norms", "weights"):
            assert max(case[what]) < 1e-6, case


@pytest.mark.torch
def test_only_logged_steps_read_numbers_from_tensors(tmp_path: Path) -> None:
    finished(2, reads, tmp_path, str(tmp_path / "out.json"))
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert set(outcome) == set(PLAIN)
    for name, by_step in outcome.items():
        assert by_step[:-1] == [0] * 8, name
        assert by_step[-1] >= 1, f"{name}: the loss of the step that is logged"


@pytest.mark.torch
def test_fsdp_scratch_save_gathers_and_copies_nothing_and_keeps_moments(
    tmp_path: Path,
) -> None:
    finished(2, saved_early, tmp_path, str(tmp_path / "out.json"))
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["sent"] == 0
    assert outcome["copied"] == []
    assert outcome["parts"] == 4 + 2 * 4, "parameters of two Linears, and both moments of each"
    before, after = outcome["before"], outcome["after"]
    assert len(before) == 1
    assert after[0] == before[0]
    assert len(after) == 2
    assert not torch.tensor(after[1][1]).any(), "moments of the other: zeros"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streamed", [False, True])
def test_unequal_shares_have_equally_many_micro_batches_and_count_samples_once(streamed: bool, workers: int) -> None:
    plain = TensorData(torch.arange(22))
    data = Numbers(plain, 22) if streamed else plain
    counted: list[int] = []
    for rank in range(2):
        order = (
            StreamOrder(global_batch_size=11) if streamed else DataOrder(length=22, global_batch_size=11, shuffle=False)
        )
        partition = BatchPartition(global_batch_size=11, rank=rank, world_size=2, micro_batch_size=1)
        steps = batches(data, order, partition, LoaderConfig(workers=workers), seed=0)
        for _ in range(2):
            parts = next(steps)
            assert len(parts) == 6
            assert all(len(batch[0]) == 1 for batch, _ in parts), (
                "one that counts for nothing has a sample all the same"
            )
            counted += [int(i) for batch, n in parts for i in batch[0][:n]]
        del steps
    assert sorted(counted) == list(range(22))
