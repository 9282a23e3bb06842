"""Strategy deepspeed without the package: what contradicts its file, and the sizes of batches that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from dtj_trainer import deepspeed_file, universal
from dtj_trainer.checkpoint.export import open_tensors
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.errors import ConfigError
from dtj_trainer.trainer import Trainer
from dtj_trainer.universal import TAG, shards


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ds_config.json"


def config(file: Path, **fields: Any) -> TrainerConfig:
    made: TrainerConfig = build(
        TrainerConfig, {"steps": 3, "strategy": {"kind": "deepspeed", "config": str(file)}, **fields}
    )
    return made


def settle(file: Path, values: Any, world_size: int = 4, **fields: Any) -> deepspeed_file.Settings:
    file.write_text(json.dumps(values))
    return deepspeed_file.settle(config(file, **fields), world_size)


def sizes(settings: deepspeed_file.Settings) -> tuple[int, int, int]:
    values = settings.values
    return (
        values["train_batch_size"],
        values["train_micro_batch_size_per_gpu"],
        values["gradient_accumulation_steps"],
    )


@pytest.mark.parametrize(
    ("values", "fields", "world_size", "expected"),
    [
        ({}, {}, 4, (64, 16, 1)),
        ({}, {"micro_batch_size": 4}, 4, (64, 4, 4)),
        ({"train_batch_size": 64}, {}, 2, (64, 32, 1)),
        ({"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}, {}, 2, (64, 32, 1)),
        ({"train_micro_batch_size_per_gpu": 8}, {}, 4, (64, 8, 2)),
        ({"train_micro_batch_size_per_gpu": 8}, {}, 2, (64, 8, 4)),
        ({"train_micro_batch_size_per_gpu": 8}, {"micro_batch_size": 8}, 8, (64, 8, 1)),
        ({"train_micro_batch_size_per_gpu": 32}, {}, 4, (64, 16, 1)),
        ({"gradient_accumulation_steps": 2}, {}, 4, (64, 8, 2)),
        # DeepSpeed requires a product; the steps have the samples of the run, in shares that differ by one.
        ({}, {"global_batch_size": 10, "micro_batch_size": 2}, 4, (16, 2, 2)),
    ],
)
def test_sizes_of_batches_fit_the_run(
    file: Path, values: dict[str, Any], fields: dict[str, Any], world_size: int, expected: tuple[int, int, int]
) -> None:
    settings = settle(file, values, world_size, **fields)
    assert sizes(settings) == expected
    assert settings.micro_batch_size == expected[1]


@pytest.mark.parametrize(
    ("values", "fields", "message"),
    [
        ({"train_batch_size": 32}, {}, "train_batch_size=32, but global_batch_size=64"),
        (
            {"train_micro_batch_size_per_gpu": 4},
            {"micro_batch_size": 8},
            "train_micro_batch_size_per_gpu=4, but micro_batch_size=8: leave one of them out",
        ),
        (
            {"gradient_accumulation_steps": 3},
            {"micro_batch_size": 8},
            'takes 2: write gradient_accumulation_steps: "auto"',
        ),
        ({"gradient_clipping": 1.0}, {"clip_norm": 0.5}, "gradient_clipping=1.0, but clip_norm=0.5"),
        ({"optimizer": {"type": "AdamW"}}, {"optimizer": {"lr": 0.1}}, "has an optimizer, and the config too"),
        ({"scheduler": {"type": "WarmupLR"}}, {"schedule": {"warmup_steps": 5}}, "has a scheduler, and the config a"),
        ({"checkpoint": {"use_node_local_storage": True}}, {}, "checkpoint.use_node_local_storage: write false"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, {}, 'zero_optimization.reduce_bucket_size is "auto"'),
        ({"train_batch_size": "many"}, {}, "train_batch_size='many': write a number"),
        ([], {}, "write a JSON object"),
    ],
)
def test_contradiction_of_file_and_config_is_named(
    file: Path, values: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settle(file, values, **fields)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": {"dtype": "bf16"}}, "precision.dtype=bf16 does not work with strategy deepspeed: write bf16"),
        ({"micro_batch_size": "auto"}, "micro_batch_size=auto does not work with strategy deepspeed"),
        ({"tune": True}, "tune does not work with strategy deepspeed"),
        ({"compile": True}, "compile does not work with strategy deepspeed"),
        ({"ema_decay": 0.9}, "ema_decay does not work with strategy deepspeed"),
        ({"activation_offload": True}, "activation_offload does not work with strategy deepspeed"),
        ({"communication": {"method": "bf16"}}, "communication.method=bf16 does not work with strategy deepspeed"),
        ({"elastic": {"batch": "PerRank"}}, "elastic.batch=PerRank does not work with strategy deepspeed"),
        (
            {"state": {"checkpoint": {"snapshot_every_steps": 5}}},
            "checkpoint.snapshot_every_steps does not work with strategy deepspeed",
        ),
    ],
)
def test_field_that_deepspeed_can_not_follow_is_named(file: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(file, **fields)
    assert message in str(caught.value)


def test_number_in_one_place_is_that_of_both(file: Path) -> None:
    assert settle(file, {}, clip_norm=0.5).values["gradient_clipping"] == 0.5
    assert settle(file, {"gradient_clipping": 0.5}).values["gradient_clipping"] == 0.5
    assert settle(file, {"gradient_clipping": "auto"}, clip_norm=0.5).values["gradient_clipping"] == 0.5
    assert settle(file, {}).values["gradient_clipping"] == 0.0


def test_rest_of_the_file_is_taken_as_it_is(file: Path) -> None:
    values = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True}, "unheard_of": [1]}
    found = settle(file, values)
    assert {key: found.values[key] for key in values} == values
    assert (found.has_optimizer, found.has_scheduler) == (False, False)
    assert settle(file, {"optimizer": {"type": "AdamW"}}).has_optimizer


def test_file_that_is_missing_or_no_json_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"strategy.config .*ds_config.json: No such file"):
        deepspeed_file.settle(config(file), 4)
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"ds_config.json is not valid JSON"):
        deepspeed_file.settle(config(file), 4)
    monkeypatch.chdir(file.parent)
    with pytest.raises(ConfigError, match=r"ds_config.json is not valid JSON"):
        deepspeed_file.settle(build(TrainerConfig, {"steps": 3, "strategy": "deepspeed"}), 4)


def test_missing_package_is_named_before_any_rank_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"strategy: deepspeed needs the package deepspeed, which the image lacks"):
        Trainer(config(file))


def test_ranks_of_a_checkpoint_are_counted_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / TAG
    folder.mkdir()
    assert shards(tmp_path) == 0
    for rank in range(3):
        for model_rank in range(2):
            (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt").touch()
    (folder / "mp_rank_00_model_states.pt").touch()
    assert shards(tmp_path) == 3


def test_export_of_a_checkpoint_of_deepspeed_names_its_program(tmp_path: Path) -> None:
    save({"other": {"x": torch.zeros(1)}}, checkpoint_id=tmp_path, no_dist=True)
    (tmp_path / "zero_to_fp32.py").touch()
    with pytest.raises(ConfigError, match=r"was saved by DeepSpeed: write python .*zero_to_fp32.py"):
        open_tensors(tmp_path, "model")


def test_conversion_that_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "hanging.sh"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(hanging))
    monkeypatch.setattr(universal, "CONVERT_SECONDS", 0.2)
    assert "has not ended within 0.2 s" in universal.convert(tmp_path, tmp_path / "converted")
