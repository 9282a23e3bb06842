"""A validation that can't work ends with what to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from torch import nn

from dtj_trainer.components.validation import evaluate
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.prepare import check_arguments
from dtj_trainer.task import Task


class Alone:
    rank, world_size, device = 0, 1, torch.device("cpu")

    def all_objects(self, value: object) -> list[object]:
        return [value]


def evaluated(given: object) -> dict[str, float]:
    def measure(model: nn.Module, batch: Any) -> Mapping[str, torch.Tensor]:
        return cast("Mapping[str, torch.Tensor]", given)

    data = TensorData(torch.zeros(5, 1))
    return evaluate(nn.Linear(1, 1), data, measure, group=cast("Group", Alone()), batch_size=2)


def test_measure_gives_numbers_of_any_kind() -> None:
    given = {"a": torch.tensor([2.0]), "b": 3, "c": torch.tensor(True), "d": 0.5}
    assert evaluated(given) == {"a": 2.0, "b": 3.0, "c": 1.0, "d": 0.5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.tensor(1.0), "measure gave a Tensor: return a dict of means over the batch"),
        (None, "measure gave a NoneType: return a dict"),
        ({"hits": torch.ones(2)}, r"measure gave a tensor of shape \(2,\) as 'hits': return one number, the mean"),
        ({"hits": "many"}, "measure gave 'many' as 'hits': return one number"),
    ],
)
def test_measure_that_gives_no_means_is_rejected_with_what_to_write(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluated(given)


def test_empty_validation_is_rejected_before_the_first_step() -> None:
    empty = TensorData(torch.zeros(0, 1))
    task = Task(
        model=nn.Linear(1, 1), data=TensorData(torch.zeros(5, 1)), loss=lambda model, batch: model(batch[0]).mean(),
        validation=empty, measure=lambda model, batch: {},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="validation is an empty data set"):
        check_arguments(task, TrainerConfig(steps=1))
