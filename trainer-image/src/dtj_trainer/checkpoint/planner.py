"""torch's planners, extended to `FlatShard`: torch itself looks up chunks in tensors alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from dtj_trainer.distributed.flat_shard import FlatShard, StateDict


class SavePlanner(DefaultSavePlanner):
    """The planner for `save`."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Returns the tensor to write at an index."""
        leaf = self.state_dict[index.fqn]
        return leaf.find_chunk(index) if isinstance(leaf, FlatShard) else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """The planner for `load`."""

    def set_up_planner(
        self, state_dict: StateDict, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Sets up torch's planner, and puts the flat shards back, which torch replaces by None."""
        shards = list(_flat_shards(state_dict))
        super().set_up_planner(state_dict, metadata, is_coordinator)
        for holder, key, dotted, shard in shards:
            holder[key] = self.state_dict[dotted] = shard

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Returns the tensor to read into at an index."""
        leaf = self.state_dict[index.fqn]
        return leaf.find_chunk(index) if isinstance(leaf, FlatShard) else super().lookup_tensor(index)


def _flat_shards(tree: StateDict, prefix: str = "") -> Iterator[tuple[StateDict, str, str, FlatShard]]:
    """Yields each flat shard in nested dicts: the dict that holds it, its key there, its dotted key."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat_shards(value, f"{prefix}{key}.")
        elif isinstance(value, FlatShard):
            yield tree, key, f"{prefix}{key}", value
