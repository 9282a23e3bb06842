"""Options of a run: optimizer groups, half precision over an interruption, arguments of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from dtj_trainer.data.nested import first
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_options import different_arguments, half, optimizers


@pytest.mark.torch
def test_optimizer_groups_move_between_strategies_and_own_optimizer_is_kept(tmp_path: Path) -> None:
    finished(2, optimizers, tmp_path, tmp_path)
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["deterministic"]
    assert outcome["groups"] == [[0.5, [2]], [0.0, [1]]], "matrices decay; norms and biases do not"
    assert outcome["parts"] == pytest.approx(outcome["whole"], abs=1e-6), "two steps by ddp, two by fsdp"
    assert outcome["own"] == pytest.approx(outcome["undecayed"], abs=1e-6), "AdamW without decay is Adam"
    assert outcome["whole"][-1] != pytest.approx(outcome["undecayed"][-1], abs=1e-4)


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "scale"), [("bf16", 1.0), ("fp16", 2.0**12)])
def test_half_precision_resumes_to_the_bit_with_its_loss_scale(tmp_path: Path, dtype: str, scale: float) -> None:
    finished(2, half, tmp_path, tmp_path, dtype)
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["parts"] == outcome["whole"]
    assert outcome["whole"][1] == scale, (
        "of fp16 doubled after steps 2 and 4, though the interruption came between them"
    )


@pytest.mark.torch
def test_ranks_with_different_arguments_name_them_and_exit_with_93(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("task: dtj_trainer.examples.digits:task\nsteps: 5\n")
    with ranks(2, different_arguments, tmp_path, str(file)) as group:
        assert group.wait() == [93, 93]
    for rank in range(2):
        assert "rank 1 has arguments={'model': 'cnn'}, rank 0 has arguments={'model': 'mlp'}" in group.output(rank)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_first_samples_of_any_nesting_keep_its_types() -> None:
    batch = {"a": Pair(torch.arange(3), torch.arange(3)), "b": [torch.arange(3), "text"]}
    got = first(batch, 2)
    assert isinstance(got["a"], Pair)
    assert got["a"].y.tolist() == got["b"][0].tolist() == [0, 1]
    assert got["b"][1] == "text"
