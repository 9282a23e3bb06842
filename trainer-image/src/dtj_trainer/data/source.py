"""Fetches batches by index, from tensors in memory or any map-style data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from dtj_trainer.data.order import Indices
from dtj_trainer.errors import ConfigError


class MapDataset(Protocol):
    """Anything with a length and items by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class BatchDataset(Protocol):
    """A data set that returns whole batches, which saves a Python call per sample."""

    def __len__(self) -> int: ...

    def get_batch(self, indices: Sequence[int] | Indices, /) -> Any: ...


class TensorData:
    """Tensors of equal length in memory; a batch is one index_select each."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def get_batch(self, indices: Sequence[int] | Indices) -> tuple[torch.Tensor, ...]:
        """Returns all tensors at `indices`."""
        at = torch.as_tensor(indices)
        return tuple(t[at] for t in self.tensors)


def check_data(data: object, name: str) -> None:
    """Raises ConfigError, with what to write, for data that the Trainer can't cut into shares."""
    if isinstance(data, DataLoader):
        raise ConfigError(
            f"{name} is a DataLoader: pass its data set ({name}=loader.dataset) and write global_batch_size, shuffle "
            "and "
            "data.workers in the config; a collate_fn becomes the data set's get_batch(indices)"
        )
    if isinstance(data, IterableDataset):
        raise ConfigError(
            f"{name} is an IterableDataset, which can't resume in the middle: pass a data set with __len__ and "
            "__getitem__"
            + (", or an object with read(start), which yields samples from number `start` on" if name == "data" else "")
        )
    missing = [method for method in ("__len__", "__getitem__") if not hasattr(data, method)]
    if missing and not (isinstance(data, BatchDataset) and missing == ["__getitem__"]):
        raise ConfigError(
            f"{name} is a {type(data).__name__} without {' and '.join(missing)}: pass a data set that has both"
        )


def fetch(dataset: MapDataset | BatchDataset, indices: Indices) -> Any:
    """Returns one batch."""
    if isinstance(dataset, BatchDataset):
        return dataset.get_batch(indices)
    return collate([dataset[int(i)] for i in indices])


def collate(samples: list[Any]) -> Any:
    """Makes a batch of samples.

    Raises ConfigError if their shapes differ, or if torch can't stack their type.
    """
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as e:
        shapes = list(dict.fromkeys(_shape(sample) for sample in samples))[:2]
        raise ConfigError(
            f"samples of one batch differ in shape or type ({' and '.join(shapes)}: {e}): pad them to one shape, or "
            "give the data set a get_batch(indices) that makes the batch"
        ) from e


def _shape(sample: Any) -> str:
    if isinstance(sample, torch.Tensor):
        return str(tuple(sample.shape))
    if isinstance(sample, (tuple, list)):
        return f"[{', '.join(map(_shape, sample))}]"
    if isinstance(sample, dict):
        return f"{{{', '.join(f'{k}: {_shape(v)}' for k, v in sample.items())}}}"
    return type(sample).__name__


def in_order(
    dataset: MapDataset | BatchDataset, batch_size: int, rank: int, world_size: int
) -> Iterator[tuple[Any, int]]:
    """Yields a rank's share of one pass for validation, as (batch, samples that count).

    Each sample counts on one rank.

    All ranks get the same number of batches, because sharded models communicate in every forward. A
    rank without a sample gets sample 0, which does not count.
    """
    shares = np.array_split(np.arange(len(dataset), dtype=np.int64), world_size)
    for start in range(0, len(shares[0]), batch_size):  # array_split puts the longest shares first
        indices = shares[rank][start : start + batch_size]
        yield fetch(dataset, indices if len(indices) else np.zeros(1, np.int64)), len(indices)
