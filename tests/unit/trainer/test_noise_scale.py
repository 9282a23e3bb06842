"""The gradient noise scale: of known samples, by any strategy that reports it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.components.noise_scale import estimate
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import FsdpConfig, make
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_noise_scale import measure

pytestmark = pytest.mark.torch


def test_estimate_tells_the_gradient_from_its_noise() -> None:
    """Of n samples with variances that add up to S, a gradient of squared length G has G + S / n."""
    square, variance = estimate(3.0 + 50.0 / 8, 3.0 + 50.0 / 32, 8, 32)
    assert square == pytest.approx(3.0)
    assert variance == pytest.approx(50.0)


def test_scale_of_known_samples_is_reported(tmp_path: Path) -> None:
    finished(2, measure, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert results.keys() == {f"{name} {method}" for name in ("ddp", "ddp_scratch") for method in ("none", "bf16")}
    for name, scales in results.items():
        known = [scale for scale in scales[30:] if scale is not None]
        assert len(known) > 50, name
        assert 50 < statistics.median(known) < 200, (name, "variances of 20 over a squared length of 0.2")
    assert results["ddp none"] == pytest.approx(results["ddp_scratch none"], rel=1e-3)


@pytest.mark.parametrize(("options", "message"), [
    ({"precision": {"dtype": "fp16"}}, "communication.noise_scale does not work with precision fp16"),
    ({"communication": {"noise_scale": 1}}, "communication.noise_scale=1: write true or false"),
])  # fmt: skip
def test_combination_that_can_not_work_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(TrainerConfig, {"steps": 1, "communication": {"noise_scale": True}, **options})
    assert message in str(error.value)


def test_sharded_gradients_have_no_scale() -> None:
    config = build(TrainerConfig, {"steps": 1, "communication": {"noise_scale": True}})
    with pytest.raises(ConfigError, match="noise_scale: true does not work with strategy fsdp"):
        make(FsdpConfig(), None, config.communication)
