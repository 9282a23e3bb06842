"""Options of a run: optimizers with groups, half precision over an interruption, what must be the same on every rank."""

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
def test_an_optimizer_of_two_groups_moves_between_strategies_and_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    finished(2, optimizers, tmp_path, tmp_path)
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["deterministic"]
    assert told["groups"] == [[0.5, [2]], [0.0, [1]]], "matrices decay; norms and biases do not"
    assert told["parts"] == pytest.approx(told["whole"], abs=1e-6), "two steps by ddp, two by fsdp"
    assert told["own"] == pytest.approx(told["undecayed"], abs=1e-6), "AdamW without decay is Adam"
    assert told["whole"][-1] != pytest.approx(told["undecayed"][-1], abs=1e-4)


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "scale"), [("bf16", 1.0), ("fp16", 2.0**12)])
def test_half_precision_goes_on_after_an_interruption_to_the_bit_its_loss_scale_too(
    tmp_path: Path, dtype: str, scale: float
) -> None:
    finished(2, half, tmp_path, tmp_path, dtype)
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["parts"] == told["whole"]
    assert told["whole"][1] == scale, "of fp16 doubled after steps 2 and 4, though the interruption came between them"


@pytest.mark.torch
def test_ranks_with_another_task_or_arguments_say_so_and_ask_for_no_restart(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("task: dtj_trainer.examples.digits:task\nsteps: 5\n")
    with ranks(2, different_arguments, tmp_path, str(file)) as group:
        assert group.wait() == [93, 93]
    for rank in range(2):
        assert "rank 1 has arguments={'model': 'cnn'}, rank 0 has arguments={'model': 'mlp'}" in group.output(rank)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_a_batch_may_be_any_nesting_and_keeps_its_types() -> None:
    batch = {"a": Pair(torch.arange(3), torch.arange(3)), "b": [torch.arange(3), "text"]}
    got = first(batch, 2)
    assert isinstance(got["a"], Pair)
    assert got["a"].y.tolist() == got["b"][0].tolist() == [0, 1]
    assert got["b"][1] == "text"
