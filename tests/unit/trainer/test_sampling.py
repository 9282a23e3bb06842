"""A rank gets its own samples and random numbers, and the same ones after a restart."""

from __future__ import annotations

import json
import random
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset

from dtj_trainer.checkpoint import rng
from dtj_trainer.data import loader
from dtj_trainer.data.nested import first, to_device
from dtj_trainer.data.order import DataOrder
from dtj_trainer.data.source import TensorData, check_data
from dtj_trainer.errors import ConfigError
from tests.unit.trainer import ranks_sampling
from tests.unit.trainer.ranks import finished


def test_worker_augmentation_repeats_after_a_restart_and_differs_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls a worker's code without a worker; earlier states of the generators must not matter."""
    monkeypatch.setattr(loader, "get_worker_info", lambda: "a worker")

    def drawn(rank: int, first: int) -> list[Any]:
        rng.seed_all(random.SystemRandom().randrange(2**32))
        order = DataOrder(length=24, global_batch_size=4, position=4 * first)
        requests = loader._Requests(
            order, loader.BatchPartition(global_batch_size=4, rank=rank, world_size=2, micro_batch_size=None)
        )
        return [
            loader._ByIndex(ranks_sampling.Augmented(), 3)[request].tolist() for request in islice(requests, 6 - first)
        ]

    kept = rng.capture()
    try:
        mine, resumed, theirs = drawn(0, 0), drawn(0, 3), drawn(1, 0)
    finally:
        rng.restore(kept)
    assert resumed == mine[3:], "random, NumPy, torch"
    assert all(a != b for m, t in zip(mine, theirs, strict=True) for a, b in zip(m, t, strict=True))


@pytest.mark.torch
def test_ranks_seeded_alike_build_the_same_model_and_draw_different_numbers(tmp_path: Path) -> None:
    finished(2, ranks_sampling.masks, tmp_path, str(tmp_path / "out.json"))
    mine, theirs = json.loads((tmp_path / "out.json").read_text())
    assert mine["built"] == theirs["built"]
    assert mine["masks"] != theirs["masks"]
    for a, b in zip(mine["others"], theirs["others"], strict=True):
        assert a[0] != b[0], "random"
        assert a[1] != b[1], "NumPy"


def test_global_batch_size_other_than_the_checkpoints_is_rejected() -> None:
    before = DataOrder(length=96, global_batch_size=8)
    before.advance()
    with pytest.raises(
        ConfigError, match=r"global_batch_size=8, this run has global_batch_size=16: .* set global_batch_size back"
    ):
        DataOrder(length=96, global_batch_size=16).load_state_dict(before.state_dict())
    old = {key: value for key, value in before.state_dict().items() if key != "global_batch_size"}
    after = DataOrder(length=96, global_batch_size=8)
    after.load_state_dict(old)
    assert after.position == 8, "a checkpoint from before it was recorded"


class Endless(IterableDataset[int]):
    """Data that a Trainer can't resume in the middle."""

    def __iter__(self) -> Iterator[int]:
        return iter([1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(TensorData(torch.ones(2))), r"a DataLoader: pass its data set \(data=loader.dataset\)"),  # type: ignore[arg-type]
        (Endless(), "an IterableDataset, which can't resume in the middle: pass a data set with __len__"),
        (iter([1]), "a list_iterator without __len__ and __getitem__"),
    ],
    ids=["DataLoader", "IterableDataset", "iterator"],
)
def test_data_that_has_no_shares_is_rejected_with_what_to_write(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_data(data, "data")
    check_data(TensorData(torch.ones(2)), "data")
    check_data(ranks_sampling.Augmented(), "data")


Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Sample:
    """A batch of a user's own kind."""

    images: torch.Tensor
    names: list[str]


class Mover:
    """An object with its own `to`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> Mover:
        return Mover(self.tensor.to(device))


@pytest.mark.parametrize(
    ("batch", "tensor"),
    [
        (UserDict(x=torch.ones(3, 2)), lambda b: b["x"]),
        (OrderedDict(x=[torch.ones(3, 2)]), lambda b: b["x"][0]),
        (MappingProxyType({"x": torch.ones(3, 2)}), lambda b: b["x"]),
        (Sample(images=torch.ones(3, 2), names=["a"]), lambda b: b.images),
        (Pair(torch.ones(3, 2), 1), lambda b: b.a),
        (Mover(torch.ones(3, 2)), lambda b: b.tensor),
        (pack_sequence([torch.ones(3), torch.ones(2)]), lambda b: b.data),
    ],
    ids=lambda v: type(v).__name__,
)
def test_batch_of_any_usual_kind_is_moved_and_keeps_its_type(batch: Any, tensor: Any) -> None:
    moved = to_device(batch, torch.device("meta"))
    assert tensor(moved).device.type == "meta"
    assert tensor(batch).device.type == "cpu", "the batch itself is left alone"
    assert isinstance(batch, MappingProxyType) or type(moved) is type(batch)


def test_first_samples_of_a_mapping_are_cut_as_those_of_a_dict() -> None:
    assert first(UserDict(x=torch.ones(3, 2)), 2)["x"].shape == (2, 2)
