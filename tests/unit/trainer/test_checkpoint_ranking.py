"""What checkpoints are ranked by, and training ends by, is of the step itself; what is not there is named."""

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
def test_a_checkpoint_is_ranked_by_its_own_steps_loss_and_validation(tmp_path: Path) -> None:
    finished(1, ranks_sampling.ranked, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    told = json.loads((tmp_path / "out.json").read_text())
    steps = {f"step-{step:08d}": step for step in (3, 6, 9, 12)}
    assert told["loss"].keys() == told["validation_weight"].keys() == steps.keys()
    for name, step in steps.items():
        assert told["loss"][name]["loss"] == told["losses loss"][step - 1], name
    weights = [told["validation_weight"][name]["validation_weight"] for name in steps]
    assert weights == sorted(set(weights)), "each step's own weight, which falls from step to step"


@pytest.mark.torch
def test_a_metric_or_validation_that_is_not_there_is_named(tmp_path: Path) -> None:
    finished(1, ranks_sampling.misspelt, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    told = json.loads((tmp_path / "out.json").read_text())
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
        assert told.get(name, "nothing").startswith("ConfigError"), (name, told)
        assert message in told[name]
    assert "validation_loss" in told["validation metric"]


@pytest.mark.torch
def test_a_metric_that_no_report_has_is_an_event_once(tmp_path: Path) -> None:
    said = finished(1, ranks_sampling.misspelt_in_a_loop_of_ones_own, tmp_path, str(tmp_path / "c"))
    assert said.count("CheckpointMetricMissing") == 1
    assert "'acuracy' is not among ['accuracy', 'loss']" in said


def test_early_stop_without_validations_on_the_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="early_stop counts validations: write validate_every_steps too"):
        TrainerConfig(steps=20, early_stop=EarlyStopConfig())
