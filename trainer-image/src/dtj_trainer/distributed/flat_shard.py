"""A flat part of a tensor, as torch's checkpoints take it: cut into boxes, so that nobody has to gather the whole to save it.

A rank of fsdp_scratch owns a run of elements of the flattened tensor. A checkpoint knows only boxes (offsets and sizes in
each dimension). A run is a few of them: the end of a row, whole rows, the beginning of a row, and so on inward.
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
    """Offsets and sizes of the boxes that elements [start, stop) of a row-major tensor are, in the order of its elements.

    At most two for each dimension but the last, and one more.
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
    """Elements of a tensor that lie one after the other, from `start` on. A state dict's leaf, in a tensor's place."""

    flat: torch.Tensor
    """One-dimensional; the live values, so a load into them changes what they are a view of."""
    start: int
    shape: Shape
    """Of the whole."""

    def chunks(self) -> Iterator[tuple[Shape, torch.Tensor]]:
        """Views of `flat` as boxes of the whole, each with its offsets."""
        at = 0
        for offsets, sizes in boxes(self.shape, self.start, self.start + self.flat.numel()):
            size = math.prod(sizes)
            yield offsets, self.flat[at : at + size].view(sizes)
            at += size

    def size(self) -> torch.Size:
        """Of the whole: torch compares it with the checkpoint's."""
        return torch.Size(self.shape)

    def find_chunk(self, index: MetadataIndex) -> torch.Tensor:
        """The piece at an index of torch's."""
        for offsets, piece in self.chunks():
            if torch.Size(offsets) == index.offset:
                return piece
        raise ValueError(f"{index.fqn}: no piece of this rank begins at {index.offset}")

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
        return [ChunkStorageMetadata(torch.Size(offsets), piece.size()) for offsets, piece in self.chunks()]
