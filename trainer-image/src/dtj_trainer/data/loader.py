"""Loads a rank's micro-batches in order, from a data set by index or from a stream.

Worker processes can fetch ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from dtj_trainer.checkpoint import rng
from dtj_trainer.data.order import DataOrder, Indices, rank_bounds
from dtj_trainer.data.source import BatchDataset, MapDataset, collate, fetch
from dtj_trainer.data.step_size import StepSize
from dtj_trainer.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class LoaderConfig:
    """How samples are fetched."""

    workers: int = 0
    """Processes of this rank that fetch ahead during the run; 0: the training thread fetches."""
    prefetch: int = 2
    """Micro-batches that each worker is ahead."""
    pin_memory: bool | None = None
    """Page-locked memory, from which a GPU copies while it computes; None: if there is a GPU."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"data.workers={self.workers}: write 0 or more")
        if self.prefetch < 1:
            raise ConfigError(f"data.prefetch={self.prefetch}: write 1 or more")


@runtime_checkable
class StreamData(Protocol):
    """Samples that can only be read in order.

    `read(n)` begins at sample number n of the whole stream.
    """

    def read(self, start: int, /) -> Iterator[Any]: ...


@dataclass(kw_only=True, slots=True)
class StreamOrder(StepSize):
    """The position in a stream, which has no length and can't be shuffled as by DataOrder."""

    epoch: int = field(default=0, init=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPartition:
    """Cuts a global batch by rank, then into micro-batches."""

    global_batch_size: int
    rank: int
    world_size: int
    micro_batch_size: int | None

    def micro_batches(self) -> list[tuple[int, int, int]]:
        """Returns (begin, end, samples that count) in the global batch of each micro-batch.

        Every rank has the same number of them, because sharded models communicate in every forward.
        Shares differ by a sample at most: a rank without a sample for the last micro-batch repeats
        its last sample, which does not count.
        """
        begin, end = rank_bounds(self.global_batch_size, self.rank, self.world_size)
        size = self.largest
        own = [(b, min(b + size, end), min(size, end - b)) for b in range(begin, end, size)]
        return own if len(own) == -(-self._share // size) else [*own, (end - 1, end, 0)]

    @property
    def largest(self) -> int:
        """The number of samples in the largest micro-batch of any rank."""
        return self.micro_batch_size or self._share

    @property
    def _share(self) -> int:
        return -(-self.global_batch_size // self.world_size)


Request = tuple[int, Indices]
"""Position in the stream of samples, and indices."""


@dataclass(slots=True)
class _ByIndex(Dataset[Any]):
    data: MapDataset | BatchDataset
    seed: int

    def __getitem__(self, request: Request) -> Any:
        position, indices = request
        if get_worker_info() is not None:
            # Augmentation in a worker depends on the position alone, not on worker or restart.
            rng.seed_all(self.seed * 1_000_003 + position)
        return fetch(self.data, indices)


@dataclass(slots=True)
class _Requests:
    order: DataOrder
    partition: BatchPartition

    def __iter__(self) -> Iterator[Request]:
        position = self.order.position  # a separate count: workers run ahead
        while True:
            batch = self.order.batch(position)
            for begin, end, _ in self.partition.micro_batches():
                yield position + begin, batch[begin:end]
            position += self.partition.global_batch_size


class _Stream(IterableDataset[Any]):
    def __init__(self, data: StreamData, partition: BatchPartition, start: int) -> None:
        self._data, self._partition, self._start = data, partition, start

    def __iter__(self) -> Iterator[Any]:
        """Yields this worker's micro-batches. The loader reads number k from worker k mod workers."""
        info = get_worker_info()
        mine, workers = (info.id, info.num_workers) if info else (0, 1)
        source, at, number = self._data.read(self._start), self._start, 0
        position = self._start
        samples: list[Any] = []
        while True:
            for begin, end, _ in self._partition.micro_batches():
                if number % workers == mine:
                    for _ in islice(source, max(0, position + begin - at)):  # samples of other ranks or workers
                        pass
                    # A repeated last sample was read already, unless another worker read it.
                    samples = list(islice(source, end - begin)) if at < position + end else samples[-1:]
                    at = position + end
                    if len(samples) < end - begin:
                        return
                    yield collate(samples)
                number += 1
            position += self._partition.global_batch_size


def batches(
    data: MapDataset | BatchDataset | StreamData,
    order: DataOrder | StreamOrder,
    partition: BatchPartition,
    config: LoaderConfig,
    *,
    seed: int,
) -> Iterator[list[tuple[Any, int]]]:
    """Yields this rank's micro-batches step by step, without end, from the order's position on.

    Each comes with its count of samples (see BatchPartition). Raises ConfigError when a stream
    ends.
    """
    pin = torch.cuda.is_available() if config.pin_memory is None else config.pin_memory
    options: dict[str, Any] = {"batch_size": None, "num_workers": config.workers, "pin_memory": pin}
    if config.workers:
        options |= {"prefetch_factor": config.prefetch}
    # Without its own generator the loader would draw from the global one, again in a resumed run.
    options["generator"] = torch.Generator().manual_seed(seed)
    loaded: Iterable[Any]
    if isinstance(data, StreamData):
        loaded = DataLoader(_Stream(data, partition, order.position), **options)
    elif isinstance(order, DataOrder):
        loaded = DataLoader(_ByIndex(data, seed), sampler=_Requests(order, partition), **options)
    else:
        raise TypeError("a data set by index needs a DataOrder")
    sizes = [counted for _, _, counted in partition.micro_batches()]
    ready = iter(loaded)
    while True:
        step = list(islice(ready, len(sizes)))
        if len(step) < len(sizes):
            raise ConfigError(
                "the stream of samples has ended before the last step: write fewer steps, or repeat the stream"
            )
        yield list(zip(step, sizes, strict=True))
