"""auto_batch finds a size for a model that only fits in shards, and no rank waits for another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj_trainer.distributed.process_group import FakeGroup, Group
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_auto_batch import SAMPLES, auto


@pytest.mark.torch
def test_auto_finds_a_size_where_a_model_fits_in_shards_and_rejects_ddp(tmp_path: Path) -> None:
    finished(2, auto, tmp_path, str(tmp_path / "out.json"))
    first, second = json.loads((tmp_path / "out.json").read_text())
    assert first == second, "the ranks agree, though one has less memory"
    assert "not even micro_batch_size=1 fits in memory: use strategy fsdp" in first.pop("ddp")
    # MiB of threads that ran when the limit was set and have ended since.
    stacks = 16
    for name, found in first.items():
        assert 1 <= found <= (39.75 - 28 + stacks) * 2 < SAMPLES // 2, name


def test_fake_group_sends_nothing() -> None:
    """A rank that runs out of memory in a try leaves no rank waiting, not in the control group
    either.
    """
    nowhere: Any = None
    fields = {"rank": 1, "world_size": 3, "local_world_size": 1, "device": torch.device("cpu"), "backend": "gloo"}
    group = FakeGroup.of(Group(**fields, control=nowhere, checkpoint=nowhere, owns_default=False))
    assert group.gather(torch.tensor([7, 8])).tolist() == [[7, 8]] * 3
    assert (group.all_objects("a"), group.from_first("b"), group.rank) == (["a"] * 3, "b", 1)
