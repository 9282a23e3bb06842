"""The part of a whole tensor that a rank holds: a run of consecutive elements.

fully_shard cuts the first dimension, and fsdp_scratch a flat buffer, so each rank has a run of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor, Shard

EVERYWHERE = -1
"""The start of a tensor that each rank holds whole."""
UNKNOWN = -2
"""The start of a shard that is no run, as one of the second dimension: such a state fits no other world."""


class Run(NamedTuple):
    """The consecutive elements that one rank holds."""

    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    start: int
    """The first element, or EVERYWHERE, or UNKNOWN."""


def run_of(tensor: torch.Tensor, flat: Mapping[int, tuple[int, int]]) -> Run:
    """Returns the run of a live tensor. `flat`: (start, elements of the whole) of flat shards, by id."""
    if isinstance(tensor, DTensor):
        return _run_of_dtensor(tensor)
    if id(tensor) in flat:
        start, total = flat[id(tensor)]
        return Run((total,), start)
    return Run(tuple(tensor.shape), EVERYWHERE)


def _run_of_dtensor(tensor: DTensor) -> Run:
    whole = tuple(tensor.shape)
    cuts = [(number, place) for number, place in enumerate(tensor.placements) if not place.is_replicate()]
    if not cuts:
        return Run(whole, EVERYWHERE)
    dimension, placement = cuts[0]
    if len(cuts) > 1 or type(placement) is not Shard or placement.dim != 0:
        return Run(whole, UNKNOWN)
    mesh = tensor.device_mesh
    rows = -(-whole[0] // mesh.size(dimension))
    first = min(rows * mesh.get_local_rank(dimension), whole[0])
    if tensor.to_local().shape[0] != min(rows, whole[0] - first):
        return Run(whole, UNKNOWN)
    return Run(whole, first * prod(whole[1:]))


def count(numel: int, run: Run) -> int:
    """Returns how many elements of a local tensor are in the whole one: a flat shard may end in padding."""
    return numel if run.start < 0 else max(0, min(numel, prod(run.whole) - run.start))
