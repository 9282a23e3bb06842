"""All-reduce within each node and between the nodes: the same mean, and less between the nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.communication.hierarchy import levels
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import FsdpConfig, make
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_hierarchy import break_off, compare, reject

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("world", "nodes"), [(4, 2), (6, 2)], ids=["2 nodes of 2 ranks", "2 nodes of 3 ranks"])
def test_levels_give_the_same_mean_on_all_ranks(tmp_path: Path, world: int, nodes: int) -> None:
    finished(world, compare, tmp_path, str(tmp_path / "out.json"), nodes, 4)
    for name, result in json.loads((tmp_path / "out.json").read_text()).items():
        assert result["alike"], name
        assert result["gap"] < (1e-6 if "none" in name else 3e-3), name
        assert ("none" in name) == (result["gap"] < 1e-6), (name, "casts round")


@pytest.mark.parametrize("nodes", [1, 2], ids=["one node", "a rank on each node"])
def test_group_without_levels_sends_gradients_as_they_are(tmp_path: Path, nodes: int) -> None:
    finished(2, compare, tmp_path, str(tmp_path / "out.json"), nodes, 2)
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["ddp none"] == {"gap": 0.0, "alike": True}


def test_ranks_that_are_not_consecutive_on_a_node_are_rejected_on_all(tmp_path: Path) -> None:
    finished(4, reject, tmp_path, str(tmp_path / "out"))
    for rank in range(4):
        message = (tmp_path / f"out-{rank}").read_text()
        assert "as many ranks on each node, with consecutive numbers" in message
        assert message.endswith("write communication.hierarchical: false")


def test_backward_that_fails_half_way_leaves_no_bucket(tmp_path: Path) -> None:
    finished(4, break_off, tmp_path, str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == [8.0] * 64


def test_levels_that_can_not_work_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"communication.hierarchical does not work with .*topk: write none, fp16 or"):
        CommunicationConfig(method="topk", hierarchical=True)
    with pytest.raises(ConfigError, match=r"communication.hierarchical: true does not work with strategy fsdp"):
        make(FsdpConfig(), None, CommunicationConfig(hierarchical=True))


@pytest.mark.parametrize(("world", "local", "expected"), [(4, 2, 2), (4, 4, 1), (4, 1, 1), (1, 1, 1), (6, 3, 2)])
def test_levels_need_several_nodes_of_several_ranks(world: int, local: int, expected: int) -> None:
    class Place:
        rank, local_rank, device = 0, 0, None
        world_size, local_world_size = world, local

    assert levels(Place()) == expected  # type: ignore[arg-type]
