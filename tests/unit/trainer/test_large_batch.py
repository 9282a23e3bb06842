"""LARS and LAMB as their papers define them, on whole tensors and on shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dtj_trainer.components.large_batch import Lamb, Lars
from dtj_trainer.components.optimizer import OptimizerConfig, check_element_wise, make_optimizer
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.errors import ConfigError
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_large_batch import strategies

pytestmark = pytest.mark.torch
STEPS = 4


def drawn(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def steps(kind: Any, shape: tuple[int, ...], **options: Any) -> torch.Tensor:
    parameter = nn.Parameter(drawn(shape, 0))
    optimizer = kind([parameter], **options)
    for step in range(STEPS):
        parameter.grad = drawn(shape, 1 + step)
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(5, 3), (7,)], ids=["a matrix", "a vector"])
def test_lars_follows_its_paper(shape: tuple[int, ...]) -> None:
    weight, velocity = drawn(shape, 0), torch.zeros(shape, dtype=torch.float64)
    for step in range(STEPS):
        gradient = drawn(shape, 1 + step)
        local = 0.01 * weight.norm() / (gradient.norm() + 0.1 * weight.norm()) if len(shape) > 1 else 1.0
        velocity = 0.8 * velocity + 0.5 * local * (gradient + 0.1 * weight)
        weight = weight - velocity
    found = steps(Lars, shape, lr=0.5, momentum=0.8, weight_decay=0.1, trust=0.01)
    torch.testing.assert_close(found, weight)


@pytest.mark.parametrize("shape", [(5, 3), (7,)], ids=["a matrix", "a vector"])
def test_lamb_follows_its_paper(shape: tuple[int, ...]) -> None:
    weight, mean, square = drawn(shape, 0), torch.zeros(shape), torch.zeros(shape)
    for step in range(STEPS):
        gradient = drawn(shape, 1 + step)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        change = mean / (1 - 0.9 ** (step + 1)) / ((square / (1 - 0.99 ** (step + 1))).sqrt() + 1e-6) + 0.1 * weight
        scale = weight.norm() / change.norm() if len(shape) > 1 else 1.0
        weight = weight - 0.02 * scale * change
    found = steps(Lamb, shape, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
    torch.testing.assert_close(found, weight)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_layer_of_zeros_and_a_gradient_of_zeros_make_no_nan(kind: Any) -> None:
    zeros, still = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.ones(3, 2))
    optimizer = kind([zeros, still], lr=0.1)
    for _ in range(2):
        zeros.grad, still.grad = torch.ones(3, 2), torch.zeros(3, 2)
        optimizer.step()
    assert torch.isfinite(zeros).all()
    assert zeros.abs().min() > 0, "a layer of zeros leaves zero"
    assert torch.equal(still, torch.ones(3, 2))


def test_shards_take_the_steps_of_whole_tensors_and_resume(tmp_path: Path) -> None:
    finished(2, strategies, tmp_path, str(tmp_path))
    results = json.loads((tmp_path / "out.json").read_text())
    for name in ("lamb", "lars"):
        ddp, fsdp, resumed = (results[f"{name} {strategy}"] for strategy in ("ddp", "fsdp", "resumed"))
        assert fsdp == pytest.approx(ddp, rel=1e-4), name
        assert resumed == fsdp[-len(resumed) :], name
        assert ddp[-1] < ddp[0], name


@pytest.mark.parametrize(("options", "message"), [
    ({"name": "lamp"}, "optimizer.name='lamp': write adamw or sgd or lamb or lars"),
    ({"name": "lars", "trust": 0.0}, "optimizer.trust=0.0: write a share above 0"),
    ({"name": "lamb", "fused": True}, "optimizer.fused: lamb has no fused kernel"),
])  # fmt: skip
def test_bad_option_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(TrainerConfig, {"steps": 1, "optimizer": options})
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_flat_shards_are_rejected(name: Any) -> None:
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig(name=name))
    with pytest.raises(ConfigError, match=r"computes with whole tensors .* strategy zero1 has flat shards"):
        check_element_wise(optimizer, "zero1")
