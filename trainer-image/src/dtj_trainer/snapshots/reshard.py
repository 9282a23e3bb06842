"""Divides a snapshot among another number of ranks: each gets its part of each tensor from who has it.

Tensor by tensor, from the shared memory of the old shards' pods, so no rank ever holds more than its
own part. Nothing in the live state changes here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots import slot
from dtj_trainer.snapshots.choice import Choice, Found, Unusable
from dtj_trainer.snapshots.contents import Key, LiveState, Part
from dtj_trainer.snapshots.image import unpack_data, unpack_private
from dtj_trainer.snapshots.partner import chunks

Runs = npt.NDArray[np.int64]
"""A row (start, stop) for each tensor; start is EVERYWHERE where each rank has it whole."""


@dataclass(slots=True)
class _Look:
    """Keeps what one rank has found in the files that it reads for all."""

    damaged: list[tuple[int, str]] = field(default_factory=list)
    facts: dict[int, str] = field(default_factory=dict)
    """Digest of what must be alike in all shards, by shard."""
    runs: dict[int, Runs] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    """Of the first shard."""


class Resharding:
    """One choice that is divided again; a collective."""

    def __init__(self, choice: Choice, group: Group, pods: Sequence[int], directory: Path, live: LiveState) -> None:
        assert choice.first is not None
        self._group, self._pods, self._directory, self._live = group, pods, directory, live
        self._shards, self._first = choice.shards, choice.first
        self._holders = [self._holder(found, number) for number, found in enumerate(choice.shards)]
        self._data: dict[int, list[torch.Tensor]] = {}
        """Tensors by shard, of the shards that this rank reads."""
        self._private: torch.Tensor | None = None

    def fetch(self) -> tuple[dict[str, Part], bytes]:
        """Returns this rank's (tensors by name, blob). Raises Unusable on all ranks."""
        looks: list[_Look] = self._group.all_objects(self._look())
        if damaged := frozenset(file for look in looks for file in look.damaged):
            raise Unusable(damaged)
        facts = {text for look in looks for text in look.facts.values()}
        keys = next(look.keys for look in looks if look.keys)
        olds = {number: runs for look in looks for number, runs in look.runs.items()}
        old = np.stack([olds[number] for number in range(len(self._shards))])
        # Some state of the script's own may differ from rank to rank, although nothing shards it.
        if len(facts) > 1 or not all(is_covered(old[:, n], prod(key.whole)) for n, key in enumerate(keys)):
            raise Unusable(frozenset())
        mine, targets, problem = self._prepare(keys)
        rows: list[tuple[str, Runs]] = self._group.all_objects((problem, mine))
        if any(text for text, _ in rows):
            raise Unusable(frozenset())
        self._exchange(old, np.stack([runs for _, runs in rows]), targets)
        private = self._broadcast_private()
        whole = slot.digest(private) == self._first.private_digest
        if not all(self._group.all_objects(whole)):
            raise Unusable(frozenset({(self._first.pod, self._first.name)}))
        tensors = unpack_private(private, self._first.manifest_bytes)
        for key, target in zip(keys, targets, strict=True):
            tensors[key.name] = Part(target, key.device, key.sharded)
        begin = self._first.manifest_bytes
        return tensors, bytes(private[begin : begin + self._first.blob_bytes].numpy())

    def _holder(self, found: Found, number: int) -> int:
        mates = [rank for rank, pod in enumerate(self._pods) if pod == found.pod]
        return mates[number % len(mates)]

    def _look(self) -> _Look:
        """Reads the files that this rank reads for all."""
        look = _Look()
        for number, found in enumerate(self._shards):
            if self._holders[number] == self._group.rank:
                try:
                    self._open(look, number, found)
                except Exception:  # noqa: BLE001 - the other ranks wait for this rank's look
                    look.damaged.append((found.pod, found.name))
        if self._holder(self._first, 0) == self._group.rank:
            snapshot = slot.read_any(self._directory / self._first.name)
            if snapshot is None or snapshot.header.private_digest != self._first.private_digest:
                look.damaged.append((self._first.pod, self._first.name))
            else:
                self._private = snapshot.private
        return look

    def _open(self, look: _Look, number: int, found: Found) -> None:
        snapshot = slot.read(self._directory / found.name)
        if snapshot is None or not snapshot.data_is_here or snapshot.header.data_digest != found.data_digest:
            raise SnapshotError(f"{found.name} has changed")
        every = unpack_data(snapshot.private, snapshot.data, found.manifest_bytes)
        facts = [
            [key.name, key.dtype, key.device, key.sharded, key.whole, _digest(value) if key.start < 0 else ""]
            for key, value in every
        ]
        look.facts[number] = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        look.runs[number] = _runs([key for key, _ in every])
        if number == 0:
            look.keys = [key for key, _ in every]
        self._data[number] = [value.reshape(-1)[: key.held] for key, value in every]

    def _prepare(self, keys: Sequence[Key]) -> tuple[Runs, list[torch.Tensor], str]:
        """Returns (this rank's runs, memory for them, why that failed)."""
        try:
            mine = self._live.part_of(keys)
            targets = [torch.zeros(key.shape, dtype=getattr(torch, key.dtype)) for key in mine]
        except Exception as e:  # noqa: BLE001 - the other ranks wait for this rank's answer
            return np.zeros((0, 2), np.int64), [], f"{type(e).__name__}: {e}"
        return _runs(mine), targets, ""

    def _exchange(self, old: Runs, new: Runs, targets: Sequence[torch.Tensor]) -> None:
        """Fills this rank's parts, tensor by tensor. `old` by shard and tensor, `new` by rank and tensor."""
        rank, group = self._group.rank, self._group.checkpoint
        for n, target in enumerate(targets):
            into, works = target.reshape(-1), []
            for number, begin, end in self._sources(old[:, n], new[rank, n], rank):
                at = max(int(new[rank, n, 0]), 0)
                piece = _bytes(into[begin - at : end - at])
                if self._holders[number] == rank:
                    piece.copy_(_bytes(self._slice(number, n, old, begin, end)))
                else:
                    works += [dist.irecv(c, self._holders[number], group=group) for c in chunks(piece)]
            # Pairs of ranks match in the order of the shards, on both sides.
            for other in range(self._group.world_size):
                for number, begin, end in self._sources(old[:, n], new[other, n], other) if other != rank else ():
                    if self._holders[number] == rank:
                        piece = _bytes(self._slice(number, n, old, begin, end))
                        works += [dist.isend(c, other, group=group) for c in chunks(piece)]
            for work in works:
                if work is not None:
                    work.wait()

    def _slice(self, number: int, n: int, old: Runs, begin: int, end: int) -> torch.Tensor:
        at = max(int(old[number, n, 0]), 0)
        return self._data[number][n][begin - at : end - at]

    def _sources(self, old: Runs, new: Runs, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yields (shard, begin, end) of what one rank needs of a tensor, in the order of the shards."""
        start, stop = int(new[0]), int(new[1])
        if start < 0:
            near = [number for number, found in enumerate(self._shards) if found.pod == self._pods[rank]]
            yield (near or range(len(self._shards)))[rank % len(near or self._shards)], 0, stop
            return
        for number in np.flatnonzero((old[:, 0] < stop) & (old[:, 1] > start)).tolist():
            yield number, max(start, int(old[number, 0])), min(stop, int(old[number, 1]))

    def _broadcast_private(self) -> torch.Tensor:
        """Returns the private part of the lowest rank, on all ranks."""
        content = self._private
        if content is None:
            content = torch.zeros(self._first.private_bytes, dtype=torch.uint8)
        if self._group.world_size > 1:
            for chunk in chunks(content):
                dist.broadcast(chunk, src=self._holder(self._first, 0), group=self._group.checkpoint)
        return content


def is_covered(runs: Runs, total: int) -> bool:
    """Returns whether the runs of all shards are the whole tensor, each element once."""
    if (runs[:, 0] < 0).any():
        return bool((runs[:, 0] == runs[0, 0]).all())
    at = 0
    for start, stop in sorted(map(tuple, runs.tolist())):
        if start < stop:
            if start != at:
                return False
            at = stop
    return at == total


def _runs(keys: Sequence[Key]) -> Runs:
    rows = [(key.start, max(key.start, 0) + key.held) for key in keys]
    return np.array(rows, np.int64).reshape(-1, 2)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(_bytes(tensor.reshape(-1)).numpy().data).hexdigest()
