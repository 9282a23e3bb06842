"""User errors that no restart cures end with one clear line and exit code 93."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtj_trainer import cli
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_user_errors import mistake, modes


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "shape",
            "RankMismatch: ranks were started differently: rank 1 has parameter head.0.bias=(5,) float32, rank 0 has",
        ),
        ("loss of samples", "ConfigError: loss gave a tensor of shape (2,): return one number"),
        ("loss without gradient", "ConfigError: loss gave a number without gradient"),
        ("ragged", "ConfigError: samples of one batch differ in shape"),
        ("ragged in a worker", "ConfigError: samples of one batch differ in shape"),
        ("optimizer", "ConfigError: optimizer Adafactor computes with whole tensors"),
        ("recompute", "ConfigError: recompute=block: Linear has no repeated modules"),
        ("blocks", "ConfigError: blocks='Blok': Net has no such submodule"),
        ("meta", "ConfigError: strategy=ddp_scratch can't begin from torch.device('meta')"),
        ("nothing to train", "ConfigError: model: Net has no parameter to train"),
        ("scalar", "ConfigError: strategy=fsdp can't shard scale, which has no dimension: give it shape (1,)"),
        ("pattern", "ConfigError: communication.dense: 'haed.*' matches no parameter: write a pattern of names of"),
        ("meta everywhere", "ConfigError: rank 0's model has no weights"),
    ],
)
def test_user_error_ends_with_93_and_one_line(tmp_path: Path, name: str, says: str) -> None:
    with ranks(2, mistake, tmp_path, name) as group:
        codes = group.wait()
        assert codes[0] == 93, group.everything()
        (line,) = [line for line in group.output(0).splitlines() if "Error:" in line or "Mismatch:" in line]
        assert line.startswith(says), line


@pytest.mark.torch
def test_modules_in_eval_stay_there_through_training_and_validation(tmp_path: Path) -> None:
    finished(1, modes, tmp_path, str(tmp_path / "out.json"))
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert len(outcome) == 6
    for name, seen in outcome.items():
        assert len(seen) == 3
        assert all(step == ([False, True] if name.endswith("in part") else [True, True]) for step in seen), name


def test_help_names_every_field_with_its_type_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    for flag in (
        "--epochs",
        "--global_batch_size",
        "--optimizer.lr",
        "--precision.dtype",
        "--blocks",
        "--state.checkpoint.retries",
    ):
        assert flag in output
    for kind in ("fsdp_scratch", "bucket_cap_mb", "memory_share"):
        assert kind in output, "options of every strategy"
    assert "--precision.dtype  fp32 or bf16 or fp16  [fp32]" in output
