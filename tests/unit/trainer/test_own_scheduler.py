"""`fit` takes a scheduler of one's own, and a checkpoint holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.errors import ConfigError
from dtj_trainer.examples import gpt
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_scheduler import rates
from tests.unit.trainer.ranks_shared import tiny_gpt, tokens

pytestmark = pytest.mark.torch


def test_own_scheduler_sets_the_rates_and_resumes(tmp_path: Path) -> None:
    finished(1, rates, tmp_path, str(tmp_path))
    results = json.loads((tmp_path / "out.json").read_text())
    assert [rate for rate, _ in results["halving whole"]] == [0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025]
    assert max(rate for rate, _ in results["cycle whole"]) == pytest.approx(0.01, rel=0.3)
    for name in ("halving", "cycle"):
        assert results[f"{name} broken"] == results[f"{name} whole"]


@pytest.mark.parametrize(("scheduler", "schedule", "message"), [
    (lambda optimizer, _: StepLR(optimizer, 1), ScheduleConfig(warmup_steps=3), "leave one of them out"),
    (lambda optimizer, _: ReduceLROnPlateau(optimizer), ScheduleConfig(), "scheduler gave a ReduceLROnPlateau"),
    (lambda optimizer, _: optimizer, ScheduleConfig(), "scheduler gave a AdamW"),
])  # fmt: skip
def test_scheduler_that_can_not_work_is_rejected(scheduler: Any, schedule: ScheduleConfig, message: str) -> None:
    with Trainer(TrainerConfig(steps=1, schedule=schedule)) as trainer, pytest.raises(ConfigError) as error:
        trainer.fit(tiny_gpt(), tokens(), loss=gpt.loss, scheduler=scheduler)
    assert message in str(error.value)
