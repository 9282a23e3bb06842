"""Checkpoints are ranked by metrics of their own step, and a missing metric is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtj_trainer.components.early_stopping import EarlyStopConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.errors import ConfigError
from tests.unit.trainer import ranks_sampling
from tests.unit.trainer.ranks import finished


@pytest.mark.torch
def test_checkpoint_is_ranked_by_its_own_steps_loss_and_validation(tmp_path: Path) -> None:
    finished(1, ranks_sampling.ranked, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    outcome = json.loads((tmp_path / "out.json").read_text())
    steps = {f"step-{step:08d}": step for step in (3, 6, 9, 12)}
    assert outcome["loss"].keys() == outcome["validation_weight"].keys() == steps.keys()
    for name, step in steps.items():
        assert outcome["loss"][name]["loss"] == outcome["losses loss"][step - 1], name
    weights = [outcome["validation_weight"][name]["validation_weight"] for name in steps]
    assert weights == sorted(set(weights)), "each step's own weight, which falls from step to step"


@pytest.mark.torch
def test_missing_metric_or_validation_is_named(tmp_path: Path) -> None:
    finished(1, ranks_sampling.misspelt, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    outcome = json.loads((tmp_path / "out.json").read_text())
    wanted = {
        "metric": "retention.metric='acuracy': write one of ",
        "validation metric": "retention.metric='validation_acuracy': write one of ",
        "no validation": "retention.metric='validation_loss' needs a validation: pass validation= and measure=",
        "early stop": "early_stop needs a validation: pass validation= and measure=",
        "no measure": "pass both validation=, a data set, and measure=",
        "loader": "data is a DataLoader: pass its data set",
        "validation loader": "validation is a DataLoader: pass its data set",
    }
    for name, message in wanted.items():
        assert outcome.get(name, "nothing").startswith("ConfigError"), (name, outcome)
        assert message in outcome[name]
    assert "validation_loss" in outcome["validation metric"]


@pytest.mark.torch
def test_metric_that_no_report_has_is_one_event(tmp_path: Path) -> None:
    output = finished(1, ranks_sampling.misspelt_in_a_loop_of_ones_own, tmp_path, str(tmp_path / "c"))
    assert output.count("CheckpointMetricMissing") == 1
    assert "'acuracy' is not among ['accuracy', 'loss']" in output


def test_early_stop_without_a_validation_interval_is_rejected() -> None:
    with pytest.raises(ConfigError, match="early_stop counts validations: write validate_every_steps too"):
        TrainerConfig(steps=20, early_stop=EarlyStopConfig())
