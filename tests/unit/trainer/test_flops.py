"""FLOPs are counted without values, and MFU is left out where it would be a guess."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from dtj_trainer.config import TrainerConfig
from dtj_trainer.errors import ConfigError
from dtj_trainer.examples import gpt, resnet
from dtj_trainer.examples.images import Gratings
from dtj_trainer.prepare import check_arguments
from dtj_trainer.task import Task
from dtj_trainer.telemetry.flops import count_flops, try_count_flops
from dtj_trainer.telemetry.meter import Rates
from dtj_trainer.telemetry.sinks import TelemetryConfig


def test_count_of_a_gpt_is_near_the_formula_of_the_palm_paper() -> None:
    model = gpt.Gpt(gpt.GptConfig())
    tokens = torch.zeros(2, 128, dtype=torch.long)
    counted = count_flops(model, gpt.loss, (tokens, tokens), 2) / 128
    assert counted == pytest.approx(model.flops_per_token(), rel=0.01), "the formula also counts vectors"


def test_count_of_a_resnet_50_is_three_forwards_of_its_known_size() -> None:
    with torch.device("meta"):
        model = resnet.ResNet(resnet.ResNetConfig(depth=50, pixels=224, classes=1000))
    forward = 2 * 4.09e9  # two for each of torchvision's multiply-adds
    counted = count_flops(model, resnet.loss, Gratings(2, pixels=224).get_batch([0, 1]), 2)
    first_layer = 2 * 3 * 49 * 64 * 112 * 112  # whose input has no gradient
    assert counted == pytest.approx(3 * forward - first_layer, rel=0.01)


def test_count_changes_no_random_number_no_weight_and_no_running_statistic() -> None:
    model = resnet.task(width=4, pixels=16, images=8).model
    model.append = nn.Dropout(0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    count_flops(model, resnet.loss, Gratings(2, pixels=16).get_batch([0, 1]), 2)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_model_that_needs_values_has_no_count_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def branches(model: nn.Module, batch: Any) -> torch.Tensor:
        value: torch.Tensor = model(batch).sum()
        return value if value > 0 else -value

    with caplog.at_level(logging.WARNING):
        assert try_count_flops(nn.Linear(2, 2), branches, torch.ones(1, 2), 1) is None
    assert "flops_per_sample=auto: can't count the FLOPs, so mfu is left out" in caplog.text


@pytest.mark.parametrize("rates", [Rates(flops=1e9), Rates(peak=1e12), Rates()])
def test_mfu_and_efficiency_are_left_out_without_their_references(rates: Rates) -> None:
    assert rates.metrics(10.0, 2) == {}


def test_stream_needs_the_number_itself() -> None:
    class Stream:
        def read(self, start: int, /) -> Any:
            raise AssertionError(start)

    task = Task(model=nn.Linear(1, 1), data=Stream(), loss=gpt.loss, flops_per_sample="auto")
    with pytest.raises(ConfigError, match="flops_per_sample='auto' needs a data set"):
        check_arguments(task, TrainerConfig(steps=1))


def test_rate_of_one_rank_must_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"telemetry.single_rank_samples_per_second=0: write samples/s above 0"):
        TelemetryConfig(single_rank_samples_per_second=0)
