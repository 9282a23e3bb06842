"""Where each part of a state lies in a snapshot's file, and the copy there and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots.contents import Key, Part, local
from dtj_trainer.snapshots.slot import HEADER_BYTES, Slot, aligned

_UNIT = 64


@dataclass(frozen=True, slots=True)
class Image:
    """The places of one state. Valid as long as the tensors have the same names and shapes."""

    keys: tuple[tuple[Key, ...], tuple[Key, ...]]
    """Of the private tensors, and of the data."""
    manifest: bytes
    places: tuple[int, ...]
    """Offset in the file of each tensor, private ones first."""
    blob_room: int
    private_bytes: int
    data_bytes: int

    @classmethod
    def of(cls, keys: tuple[tuple[Key, ...], tuple[Key, ...]], blob_bytes: int) -> Image:
        """Lays out a file. The blob has room to grow, because numbers in it do."""
        sizes = [_bytes_of(each) for part in keys for each in part]
        blob_room = _rounded(blob_bytes + blob_bytes // 4 + 4096)
        private = len(keys[0])

        def offsets(begin: int, parts: Sequence[int]) -> tuple[list[int], int]:
            out = []
            for size in parts:
                out.append(begin)
                begin += _rounded(size)
            return out, begin

        def manifest(places: Sequence[int]) -> bytes:
            named = [*keys[0], *keys[1]]
            return json.dumps([[*each, place] for each, place in zip(named, places, strict=True)]).encode()

        # Places are part of the manifest, so their digits are given room.
        room = _rounded(len(manifest([10**15] * len(sizes))))
        first, end = offsets(HEADER_BYTES + room + blob_room, sizes[:private])
        private_bytes = aligned(end - HEADER_BYTES)
        second, end = offsets(HEADER_BYTES + private_bytes, sizes[private:])
        places = (*first, *second)
        data_bytes = aligned(end - HEADER_BYTES - private_bytes)
        return cls(keys, manifest(places).ljust(room), places, blob_room, private_bytes, data_bytes)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return HEADER_BYTES + self.private_bytes + self.data_bytes

    def views(self, content: torch.Tensor) -> list[torch.Tensor]:
        """Returns each tensor's place in a file as a tensor."""
        every = [each for part in self.keys for each in part]
        return [_view(content, each, place) for each, place in zip(every, self.places, strict=True)]


def fill(slot: Slot, views: Sequence[torch.Tensor], image: Image, tensors: Sequence[torch.Tensor], blob: bytes) -> None:
    """Copies a state into a file. On a GPU the copies are only queued, before the work that follows."""
    at = HEADER_BYTES
    slot.put(at, image.manifest)
    slot.put(at + len(image.manifest), blob)
    for view, tensor in zip(views, tensors, strict=True):
        part = local(tensor)
        view.copy_(part, non_blocking=part.is_cuda)


def unpack(
    private: torch.Tensor, data: torch.Tensor, manifest_bytes: int, blob_bytes: int
) -> tuple[dict[str, Part], bytes]:
    """Returns (tensors by name, the blob).

    Raises SnapshotError for a manifest that does not fit its file.
    """
    named = unpack_private(private, manifest_bytes)
    for each, view in unpack_data(private, data, manifest_bytes):
        named[each.name] = Part(view, each.device, each.sharded)
    return named, bytes(private[manifest_bytes : manifest_bytes + blob_bytes].numpy())


def unpack_private(private: torch.Tensor, manifest_bytes: int) -> dict[str, Part]:
    """Returns the private tensors by name."""
    every = _manifest(bytes(private[:manifest_bytes].numpy()))
    mine = [(each, place - HEADER_BYTES) for each, place in every if place - HEADER_BYTES < private.numel()]
    return {each.name: Part(_view_inside(private, each, at), each.device, each.sharded) for each, at in mine}


def unpack_data(private: torch.Tensor, data: torch.Tensor, manifest_bytes: int) -> list[tuple[Key, torch.Tensor]]:
    """Returns the tensors of the data, in the order of the manifest."""
    end = HEADER_BYTES + private.numel()
    every = _manifest(bytes(private[:manifest_bytes].numpy()))
    return [(each, _view_inside(data, each, place - end)) for each, place in every if place >= end]


def _manifest(raw: bytes) -> Iterator[tuple[Key, int]]:
    try:
        for name, dtype, shape, device, sharded, whole, start, place in json.loads(raw):
            sizes = tuple(int(n) for n in shape), tuple(int(n) for n in whole)
            yield Key(str(name), str(dtype), sizes[0], str(device), bool(sharded), sizes[1], int(start)), int(place)
    except (ValueError, TypeError) as e:
        raise SnapshotError(f"the manifest is damaged: {e}") from None


def _bytes_of(each: Key) -> int:
    return prod(each[2]) * _dtype(each).itemsize


def _dtype(each: Key) -> torch.dtype:
    found = getattr(torch, each[1], None)
    if not isinstance(found, torch.dtype):
        raise SnapshotError(f"{each[0]} has the unknown type {each[1]!r}")
    return found


def _view_inside(content: torch.Tensor, each: Key, at: int) -> torch.Tensor:
    if at < 0 or at + _bytes_of(each) > content.numel():
        raise SnapshotError(f"{each.name} lies outside of its snapshot")
    return _view(content, each, at)


def _view(content: torch.Tensor, each: Key, at: int) -> torch.Tensor:
    size = _bytes_of(each)
    if not size:
        return torch.empty(each[2], dtype=_dtype(each))
    return content[at : at + size].view(_dtype(each)).view(each[2])


def _rounded(size: int) -> int:
    return -(-size // _UNIT) * _UNIT
