"""The blocks of models of common shapes."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from dtj_trainer.errors import ConfigError
from dtj_trainer.examples.gpt import Gpt, GptConfig
from dtj_trainer.strategies import blocks
from dtj_trainer.strategies.blocks import describe_blocks
from tests.unit.trainer import nets, nets_common


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nets_common.VisionTransformer(depth=3), {"Block": 3}),
        (nets_common.VisionTransformer(depth=3, heads=2), {"Block": 3}),
        (nets_common.ResNet(), {"Bottleneck": 6}),
        (nets_common.EfficientNet(), {"MBConv": 3}),
        (nets_common.Staged(), {"Block": 4}),
        (nets_common.Inline(), {"Block": 2}),
        (nets_common.MaskedLm(), {"BertLayer": 2}),
        (nets.Net(), {"Block": 3}),
        (nets.Nested(), {"Block": 2, "LayerNorm": 2}),
        (nets.SameTwice(), {"Block": 2}),
        (Gpt(GptConfig(block=8, layers=2, heads=2, width=8)), {"Block": 2}),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), {"Linear": 2}),
        (nn.Sequential(nets_common.Block(), nets_common.Block(), nn.Linear(8, 1)), {"Block": 2}),
        (nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])}), {"Linear": 2}),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 3, enable_nested_tensor=False),
            {"TransformerEncoderLayer": 3},
        ),
        (nn.Linear(2, 2), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_blocks_of_a_common_model_are_its_repeated_submodules(model: nn.Module, found: dict[str, int]) -> None:
    assert Counter(type(block).__name__ for block in blocks(model)) == found


def test_blocks_stand_in_the_order_of_the_model() -> None:
    model = nets_common.ResNet()
    assert blocks(model) == [*model.layer1, *model.layer2, *model.layer3]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("Bottleneck", ["layer1.0", "layer1.1", "layer2.0", "layer3.0", "layer3.1", "layer3.2"]),
        ("layer[13].*", ["layer1.0", "layer1.1", "layer3.0", "layer3.1", "layer3.2"]),
        ("layer?", ["layer1", "layer2", "layer3"]),
    ],
)
def test_block_pattern_selects_the_outermost_modules_that_match(pattern: str, names: list[str]) -> None:
    model = nets_common.ResNet()
    by_module = {module: name for name, module in model.named_modules()}
    assert [by_module[block] for block in blocks(model, pattern)] == names


def test_unknown_block_name_is_rejected_with_the_classes_of_the_model() -> None:
    with pytest.raises(
        ConfigError, match=r"blocks='Blok': VisionTransformer has no such submodule.*\bBlock\b.*encoder\.layer"
    ):
        blocks(nets_common.VisionTransformer(), "Blok")


def test_blocks_are_described_by_class_and_count() -> None:
    assert describe_blocks(blocks(nets_common.VisionTransformer(depth=12))) == "12 blocks of Block"
    assert describe_blocks([]) == "no blocks"
