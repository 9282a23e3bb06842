"""Ranks that train alone between two exchanges of their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import local_sgd
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_local_sgd import branch, exchange, run

pytestmark = pytest.mark.torch
DILOCO = {"every": 3, "outer_lr": 0.7, "outer_momentum": 0.9}


def outcomes(out: Path, world: int) -> list[dict[str, Any]]:
    return [json.loads(Path(f"{out}-{rank}").read_text()) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3])
def test_exchange_gives_all_ranks_the_mean_or_the_outer_step(tmp_path: Path, world: int) -> None:
    finished(world, exchange, tmp_path, str(tmp_path / "out.json"))
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["ddp"] < 1e-6, "an exchange after each step of SGD is DDP"
    assert result["outer"] < 1e-6 < result["moved"]
    assert result["alike"] == [False, False, True, False, False, True, False]


def test_layer_that_one_rank_leaves_out_is_exchanged_too(tmp_path: Path) -> None:
    """The optimizer of that rank has no running means of the layer, so the ranks would send different sizes."""
    finished(2, branch, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert results.keys() == {"AdamW", "SGD"}
    for result in results.values():
        assert result["alike"] == [False, True, False, True]
        one, other = result["moments"]
        assert one == other
        assert all(one), "those of the layer are the mean with what the other rank has"
        assert result["rates"] == [[0.1, 0.1]]


@pytest.mark.parametrize("options", [{"every": 3}, DILOCO], ids=["mean", "DiLoCo"])
def test_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path, options: dict[str, Any]) -> None:
    """Saves come at steps 5 and 8, between two exchanges, and are exchanges themselves."""
    finished(2, run, tmp_path, str(tmp_path / "a"), options, 8, str(tmp_path / "whole"))
    finished(2, run, tmp_path, str(tmp_path / "b"), options, 5, str(tmp_path / "half"))
    finished(2, run, tmp_path, str(tmp_path / "b"), options, 8, str(tmp_path / "rest"))
    whole, half, rest = (outcomes(tmp_path / name, 2) for name in ("whole", "half", "rest"))
    assert rest == whole
    assert rest[0] == rest[1], "all ranks end with the same weights and running means"
    assert half[0]["weights"] != rest[0]["weights"]


def test_validation_sees_one_model(tmp_path: Path) -> None:
    finished(2, run, tmp_path, str(tmp_path / "a"), {"every": 100}, 6, str(tmp_path / "out"), True)
    one, other = outcomes(tmp_path / "out", 2)
    assert one["validated"] == other["validated"]
    assert len({tuple(each) for each in one["validated"]}) == 2, "at step 4 and at the end"


def test_exchange_goes_in_buckets_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sgd, "BUCKET_ELEMENTS", 10)
    sizes = [(4, torch.float32), (6, torch.float32), (1, torch.float32), (3, torch.bfloat16), (50, torch.bfloat16)]
    found = local_sgd._buckets([torch.zeros(size, dtype=dtype) for size, dtype in sizes])
    assert [[tensor.numel() for tensor in bucket] for bucket in found] == [[4, 6], [1], [3], [50]]


def test_rank_that_is_alone_trains_as_without(tmp_path: Path) -> None:
    finished(1, run, tmp_path, str(tmp_path / "a"), {"every": 2}, 6, str(tmp_path / "two"))
    finished(1, run, tmp_path, str(tmp_path / "b"), {"every": 100}, 6, str(tmp_path / "never"))
    assert outcomes(tmp_path / "two", 1) == outcomes(tmp_path / "never", 1)


@pytest.mark.parametrize(("options", "message"), [
    ({"strategy": {"kind": "local_sgd", "every": 0}}, "strategy.every=0: write the steps between two exchanges"),
    ({"strategy": {"kind": "local_sgd", "outer_lr": 0.0}}, "strategy.outer_lr=0.0: write a number above 0"),
    ({"strategy": {"kind": "local_sgd", "outer_momentum": 1.0}}, "strategy.outer_momentum=1.0: write 0 or more"),
    ({"strategy": "local_sgd", "ema_decay": 0.9}, "ema_decay does not work with strategy local_sgd"),
    (
        {"strategy": "local_sgd", "state": {"checkpoint": {"snapshot_every_steps": 5}}},
        "snapshot_every_steps does not work with strategy local_sgd",
    ),
])  # fmt: skip
def test_option_that_can_not_work_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(TrainerConfig, {"steps": 1, **options})
    assert message in str(error.value)
