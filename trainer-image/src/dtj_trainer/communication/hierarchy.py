"""All-reduce in three steps: reduce-scatter within each node, all-reduce between the nodes, all-gather within each.

With L ranks on each node a ring of all ranks carries up to 2 G bytes of G bytes of gradients over each node's link, and
more where neighbours in the ring are on other nodes. Here each rank sends its L-th part to its peers on the other
nodes: 2 (N - 1) / N times G bytes leave each of N nodes, and half of that as bf16. NCCL's trees do the same on GPUs
(Jia et al. 2018, "Highly Scalable Deep Learning Training System with Mixed-Precision", section 3.2); gloo does not.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from dtj_trainer.communication.compressor import Place, Waiting
from dtj_trainer.errors import ConfigError

Arrived = torch.futures.Future[torch.Tensor]


PART_ELEMENTS = 1 << 20
"""A bucket is sent in parts, so that the levels work at the same time."""


@dataclass(slots=True)
class _Part:
    gradients: torch.Tensor
    padded: torch.Tensor
    """The gradients, filled up to a multiple of the ranks of a node."""
    shard: torch.Tensor
    """This rank's share of the sum over its node, then over all nodes."""
    sent: torch.Tensor
    """The share as it is sent between the nodes."""
    work: Any
    """The collective that is under way."""


class Hierarchy:
    """Sends buckets. All ranks put the same ones in the same order; they arrive at `finish`.

    A part of a bucket goes to the other nodes when the next part is put, so that every group sees the same order of
    collectives on all of its ranks, and the slow links work while the backward does.

    Args:
        group: This rank's place: ranks of a node are contiguous, and all nodes have as many. Raises ConfigError
            otherwise.
        dtype: What is sent between the nodes; None: the gradients' own type.
    """

    def __init__(self, group: Place, dtype: torch.dtype | None) -> None:
        self._world_size, self._size = group.world_size, group.local_world_size
        self._dtype = dtype
        self.waiting: Waiting = nullcontext
        self._parts: list[_Part] = []
        self._futures: list[tuple[Arrived, torch.Tensor]] = []
        self._across_until = 0
        """The parts before this one are under way between the nodes, or have been."""
        _check_places(group)
        nodes = [range(first, first + self._size) for first in range(0, self._world_size, self._size)]
        peers = [range(place, self._world_size, self._size) for place in range(self._size)]
        self._inside = _new_groups(nodes, group.rank)
        self._across = _new_groups(peers, group.rank)

    def put(self, flat: torch.Tensor) -> Arrived:
        """Takes a bucket and returns it, once it has the mean over the ranks."""
        flat.div_(self._world_size)
        future: Arrived = torch.futures.Future(devices=[flat.device] if flat.is_cuda else None)
        self._futures.append((future, flat))
        for first in range(0, flat.numel(), PART_ELEMENTS):
            part = flat[first : first + PART_ELEMENTS]
            missing = -part.numel() % self._size
            padded = pad(part, (0, missing)) if missing else part
            shard = padded.new_empty(padded.numel() // self._size)
            work = dist.reduce_scatter_single(shard, padded, group=self._inside, async_op=True)
            self._send_across()
            self._parts.append(_Part(part, padded, shard, shard, work))
        return future

    def finish(self) -> None:
        """Waits for all buckets of a step; a collective."""
        self._send_across()
        parts, futures = self._parts, self._futures
        self._forget()
        for part in parts:
            self._wait(part)
            if part.sent is not part.shard:
                part.shard.copy_(part.sent)
            part.work = dist.all_gather_single(part.padded, part.shard, group=self._inside, async_op=True)
        for part in parts:
            self._wait(part)
            if part.padded is not part.gradients:
                part.gradients.copy_(part.padded[: part.gradients.numel()])
        for future, flat in futures:
            future.set_result(flat)

    def discard(self) -> bool:
        """Forgets the buckets of a backward that an exception has ended; returns whether there were any."""
        had = bool(self._futures)
        self._forget()
        return had

    def _forget(self) -> None:
        self._parts, self._futures, self._across_until = [], [], 0

    def _send_across(self) -> None:
        for part in self._parts[self._across_until :]:
            self._wait(part)
            part.sent = part.shard if self._dtype is None else part.shard.to(self._dtype)
            part.work = dist.all_reduce(part.sent, group=self._across, async_op=True)
        self._across_until = len(self._parts)

    def _wait(self, part: _Part) -> None:
        with self.waiting():
            part.work.wait()


def levels(group: Place) -> int:
    """Returns 2 if there are several nodes with several ranks each, else 1."""
    return 2 if 1 < group.local_world_size < group.world_size else 1


def _check_places(group: Place) -> None:
    mine = torch.tensor([group.local_world_size, group.rank - group.local_rank], device=group.device)
    places = [torch.empty_like(mine) for _ in range(group.world_size)]
    dist.all_gather(places, mine)
    firsts = [int(first) for _, first in places]
    expected = [rank - rank % group.local_world_size for rank in range(group.world_size)]
    if any(int(size) != group.local_world_size for size, _ in places) or firsts != expected:
        raise ConfigError(
            "communication.hierarchical needs as many ranks on each node, with consecutive numbers; the ranks' nodes "
            f"begin at {firsts}: write communication.hierarchical: false"
        )


def _new_groups(parts: list[range], rank: int) -> dist.ProcessGroup:
    """Makes a process group of each part, on all ranks, and returns this rank's own."""
    groups: list[dist.ProcessGroup] = [dist.new_group(list(part)) for part in parts]
    return next(group for group, part in zip(groups, parts, strict=True) if rank in part)
