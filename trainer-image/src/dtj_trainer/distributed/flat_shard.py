"""A flat shard of a tensor, split into the chunks of torch's checkpoints.

No rank has to gather the whole tensor to save it. A rank of fsdp_scratch owns a run of elements of
the flattened tensor. A checkpoint knows only chunks, which are boxes (offsets and sizes in each
dimension). A run is a few boxes: the end of a row, whole rows, the beginning of a row, and so on
inward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Shape = tuple[int, ...]
StateDict = dict[str, Any]
"""Nested dicts as torch's state_dict functions return them, with tensors, DTensors or FlatShards as leaves."""


def boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Yields offsets and sizes of the boxes that cover elements [start, stop) of a tensor.

    The tensor is row-major, and the boxes are in the order of its elements. There are at most two
    boxes for each dimension but the last, and one more.
    """
    if start >= stop:
        return
    if len(shape) < 2:
        yield ((start,), (stop - start,)) if shape else ((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:  # all in one row
        cuts = [(last, start - last * row, stop - last * row)]
    else:
        cuts = [(first - 1, start - (first - 1) * row, row)] if start < first * row else []
        cuts += [(last, 0, stop - last * row)]
    for number, begin, end in cuts:
        if number == last and first < last:
            yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
        for offsets, sizes in boxes(shape[1:], begin, end):
            yield (number, *offsets), (1, *sizes)


@dataclass(frozen=True, slots=True)
class FlatShard:
    """Consecutive elements of a tensor, from `start` on.

    A leaf of a state dict, in a tensor's place.
    """

    flat: torch.Tensor
    """One-dimensional; the live values, so a load into them changes what they are a view of."""
    start: int
    shape: Shape
    """Shape of the whole tensor."""

    def chunks(self) -> Iterator[tuple[Shape, torch.Tensor]]:
        """Yields views of `flat` as boxes of the whole tensor, each with its offsets."""
        at = 0
        for offsets, sizes in boxes(self.shape, self.start, self.start + self.flat.numel()):
            size = math.prod(sizes)
            yield offsets, self.flat[at : at + size].view(sizes)
            at += size

    def size(self) -> torch.Size:
        """Returns the size of the whole tensor, which torch compares with the checkpoint's."""
        return torch.Size(self.shape)

    def find_chunk(self, index: MetadataIndex) -> torch.Tensor:
        """Returns the chunk at one of torch's indexes."""
        for offsets, chunk in self.chunks():
            if torch.Size(offsets) == index.offset:
                return chunk
        raise ValueError(f"{index.fqn}: no chunk of this rank begins at {index.offset}")

    # torch.distributed._checkpointable._Checkpointable, which DTensor implements too

    def __create_write_items__(self, key: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.flat)
        return [
            WriteItem(
                index=MetadataIndex(key, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.size()),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offsets), chunk.size()) for offsets, chunk in self.chunks()]
