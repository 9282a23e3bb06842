"""Runs of elements as boxes: few boxes cover the run, in its order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from dtj_trainer.components.ema import Ema
from dtj_trainer.distributed.flat_shard import FlatShard, boxes


@pytest.mark.parametrize(
    ("shape", "start", "stop", "expected"),
    [
        ((), 0, 1, [((), ())]),
        ((5,), 1, 4, [((1,), (3,))]),
        ((3, 4), 4, 12, [((1, 0), (2, 4))]),
        ((3, 4), 1, 3, [((0, 1), (1, 2))]),
        ((3, 4), 3, 9, [((0, 3), (1, 1)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]),
        ((3, 4), 2, 6, [((0, 2), (1, 2)), ((1, 0), (1, 2))]),
        (
            (2, 2, 2),
            1,
            7,
            [((0, 0, 1), (1, 1, 1)), ((0, 1, 0), (1, 1, 2)), ((1, 0, 0), (1, 1, 2)), ((1, 1, 0), (1, 1, 1))],
        ),
        ((3, 4), 5, 5, []),
        ((0, 4), 0, 0, []),
    ],
)
def test_run_of_elements_is_the_end_of_a_row_whole_rows_and_the_start_of_one(
    shape: Any, start: int, stop: int, expected: Any
) -> None:
    assert list(boxes(shape, start, stop)) == expected


@pytest.mark.parametrize("shape", [(), (7,), (1, 5), (4, 1, 3), (3, 1), (2, 3, 4), (1, 1, 1)])
def test_every_run_of_every_shape_is_its_boxes_each_element_once_and_in_order(shape: tuple[int, ...]) -> None:
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    for start, stop in itertools.combinations(range(whole.numel() + 1), 2):
        found = list(boxes(shape, start, stop))
        cut = [whole[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].flatten() for box in found]
        assert torch.equal(torch.cat(cut), whole.flatten()[start:stop])
        assert len(found) <= max(1, 2 * len(shape) - 1)
        part = FlatShard(whole.flatten()[start:stop], start, shape)
        for offsets, piece in part.chunks():
            assert torch.equal(piece, whole[tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape, strict=True))])


def test_averages_keep_the_names_of_a_model_with_a_submodule_called_module() -> None:
    model = torch.nn.ModuleDict({"module": torch.nn.Linear(2, 1), "head": torch.nn.Linear(1, 1)})
    assert Ema(model, 0.9).portable_state_dict().keys() == dict(model.named_parameters()).keys()
