"""A size that fits is found where the model only fits in shards, and no rank waits for one that has run out of memory."""

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
def test_auto_finds_a_size_for_a_model_that_only_fits_in_shards_and_refuses_it_whole(tmp_path: Path) -> None:
    finished(2, auto, tmp_path, str(tmp_path / "out.json"))
    first, second = json.loads((tmp_path / "out.json").read_text())
    assert first == second, "the ranks agree, though one has less memory"
    assert "not even micro_batch_size=1 fits in memory: use strategy fsdp" in first.pop("ddp")
    stacks = 16  # MiB of threads that were there when the limit was set and have ended since
    for name, found in first.items():
        assert 1 <= found <= (39.75 - 28 + stacks) * 2 < SAMPLES // 2, name


def test_a_silent_group_sends_nothing() -> None:
    """A rank that runs out of memory in a try leaves no other waiting, in the control group neither."""
    nowhere: Any = None
    fields = {"rank": 1, "world_size": 3, "local_world_size": 1, "device": torch.device("cpu"), "backend": "gloo"}
    group = FakeGroup.of(Group(**fields, control=nowhere, checkpoint=nowhere, owns_default=False))
    assert group.gather(torch.tensor([7, 8])).tolist() == [[7, 8]] * 3
    assert (group.all_objects("a"), group.from_first("b"), group.rank) == (["a"] * 3, "b", 1)
