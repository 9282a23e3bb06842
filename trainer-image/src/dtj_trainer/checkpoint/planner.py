"""torch's planners, which also know a `FlatShard`: torch itself looks up pieces in tensors alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from dtj_trainer.distributed.flat_shard import FlatShard, StateDict


class SavePlanner(DefaultSavePlanner):
    """For `save`."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What is written at an index."""
        leaf = self.state_dict[index.fqn]
        return leaf.find_chunk(index) if isinstance(leaf, FlatShard) else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """For `load`."""

    def set_up_planner(self, state_dict: StateDict, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Before all else. torch makes None of a leaf that it does not know."""
        parts = list(_parts(state_dict))
        super().set_up_planner(state_dict, metadata, is_coordinator)
        for holder, key, dotted, part in parts:
            holder[key] = self.state_dict[dotted] = part

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """What is read into at an index."""
        leaf = self.state_dict[index.fqn]
        return leaf.find_chunk(index) if isinstance(leaf, FlatShard) else super().lookup_tensor(index)


def _parts(tree: StateDict, prefix: str = "") -> Iterator[tuple[StateDict, str, str, FlatShard]]:
    """Each part in nested dicts: what holds it, its key there, its dotted key."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _parts(value, f"{prefix}{key}.")
        elif isinstance(value, FlatShard):
            yield tree, key, f"{prefix}{key}", value
