"""Offload to host memory: shards, optimizer state and activations, to the same bits."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from dtj_trainer.components import activation_offload
from dtj_trainer.components.activation_checkpoint import Recompute, checkpoint_activations
from dtj_trainer.components.activation_offload import offload_activations
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError
from dtj_trainer.prepare import find_blocks
from dtj_trainer.strategies.cpu_offload import to_host
from tests.unit.trainer.nets import WIDTH, Net
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_offload import of_activations, of_shards
from tests.unit.trainer.ranks_shared import stage


@pytest.mark.torch
def test_offload_of_shards_or_of_the_optimizer_alone_keeps_the_bits(tmp_path: Path) -> None:
    finished(2, of_shards, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    for each in (False, True):
        losses, _ = results[f"False {each}"]
        assert losses[-1] < losses[0]
        for offload in (True, "all", "optimizer"):
            found, apart = results[f"{offload} {each}"]
            assert found == losses, (offload, each)
            assert set(apart) == {offload == "optimizer"}, "only then a shard stays on the device too"
    assert results["fsdp all"] == results["fsdp True"]
    assert results["fsdp all"] == results["fsdp False"]


@pytest.mark.torch
def test_checkpoint_of_an_offloaded_optimizer_is_that_of_any_strategy(tmp_path: Path) -> None:
    directory, out, results = str(tmp_path / "checkpoints"), tmp_path / "out.json", []
    offload = "fsdp_scratch optimizer offload"
    for world, strategy, until in zip((2, 1, 2), (offload, offload, "ddp"), (2, 3, 4), strict=True):
        finished(world, stage, tmp_path, directory, strategy, until, str(out))
        results.append(json.loads(out.read_text()))
    for before, after in itertools.pairwise(results):
        assert after["loaded"] == before["saved"], "model and optimizer, to the bit"
        assert after["loaded"] != after["saved"]


@pytest.mark.torch
def test_offloaded_activations_keep_the_bits_of_every_strategy(tmp_path: Path) -> None:
    finished(2, of_activations, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(results) == 8
    for name, ((plain, none), (offloaded, moved)) in results.items():
        assert offloaded == plain, name
        assert none == 0 < moved, name
    for name in ("ddp", "fsdp", "fsdp_scratch", "zero2"):
        assert results[f"{name} block"][1][1] < results[f"{name} none"][1][1], "only inputs are left"


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The tensors that were moved, as from a GPU."""
    found: list[torch.Tensor] = []

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return to_host(tensor)

    monkeypatch.setattr(activation_offload, "DEVICES", ("cpu",))
    monkeypatch.setattr(activation_offload, "MIN_BYTES", 4 * 8 * WIDTH)
    monkeypatch.setattr(activation_offload, "to_host", kept)
    return found


def gradients(net: Net, samples: int) -> list[torch.Tensor]:
    """Returns the gradients of one backward."""
    x = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.autograd.backward(net(x).square().mean())
    return [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("mode", ["none", "block", "selective"])
def test_large_activations_of_blocks_are_moved_and_weights_are_not(moved: list[torch.Tensor], mode: Recompute) -> None:
    torch.manual_seed(0)
    net, plain = Net(), Net()
    plain.load_state_dict(net.state_dict())
    blocks = list(net.blocks.children())
    checkpoint_activations(blocks, mode)
    assert offload_activations(blocks, torch.device("cpu"))
    for ours, wanted in zip(gradients(net, 8), gradients(plain, 8), strict=True):
        assert torch.equal(ours, wanted)
    weights = {p.untyped_storage().data_ptr() for p in net.parameters()}
    assert not weights & {t.untyped_storage().data_ptr() for t in moved}
    assert len(moved) >= len(blocks)
    moved.clear()
    gradients(net, 7)
    assert moved == [], "a sample less is below the limit"
    with torch.no_grad():
        net(torch.zeros(8, WIDTH))
    assert moved == []


def test_cpu_model_is_left_as_it_is_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    with caplog.at_level(logging.INFO):
        assert not offload_activations(list(net.blocks.children()), torch.device("cpu"))
    assert all("forward" not in vars(block) for block in net.blocks.children())
    assert "activation_offload: the model is on the cpu, so that nothing has to be moved" in caplog.text


def test_model_without_blocks_is_rejected() -> None:
    group = Group.__new__(Group)
    with pytest.raises(ConfigError, match="activation_offload: Linear has no repeated modules"):
        find_blocks(nn.Linear(2, 2), TrainerConfig(steps=1, activation_offload=True), group)
