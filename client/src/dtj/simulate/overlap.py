"""Communication that the computation hides, event by event: one link, which sends in order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtj.simulate.profile import Piece

Cost = Callable[[float], float]
"""Bytes -> seconds of the collective that moves them."""


@dataclass(frozen=True, slots=True)
class Overlapped:
    """The passes of a step with their communication."""

    seconds: float
    """From the begin of the passes to the later end: of the computation, or of the last collective."""
    busy: float
    """Seconds during which the link was busy."""
    exposed: float
    """Seconds that the computation alone would not have taken."""


def data_parallel(
    buckets: Sequence[Piece],
    backward: float,
    cost: Cost,
    *,
    overlap: bool = True,
    factor: float = 1.0,
    compression_seconds: float = 0.0,
) -> Overlapped:
    """Sends each bucket once it is ready and the link is free, as DistributedDataParallel does.

    Args:
        buckets: In the order in which they leave.
        backward: Seconds of the backward pass.
        cost: Of the all-reduce of a bucket.
        overlap: False: nothing is sent before the backward pass has ended.
        factor: A bucket sends its bytes divided by this number.
        compression_seconds: Of all buckets, in proportion to their bytes. The thread that computes also compresses,
            so that all later gradients are late by what was compressed before.
    """
    total = sum(bucket.size for bucket in buckets) or 1.0
    end = backward + compression_seconds
    free = busy = delay = 0.0
    for bucket in buckets:
        delay += compression_seconds * bucket.size / total
        took = cost(bucket.size / factor)
        free = max(free, bucket.ready + delay if overlap else end) + took
        busy += took
    seconds = max(end, free)
    return Overlapped(seconds, busy, seconds - backward)


def sharded(buckets: Sequence[Piece], forward: float, backward: float, cost: Cost) -> Overlapped:
    """Gathers each block's weights before its passes, and scatters its gradients behind its backward.

    As fully_shard does: one block is gathered ahead, and weights are freed after the forward, so that the backward
    gathers them again. The link sends in the order of the requests.

    Args:
        buckets: The blocks' gradients, in the order of the backward pass. Weights have as many bytes.
        forward: Seconds of the forward pass, of which a block takes a share as of the backward pass.
        backward: Seconds of the backward pass.
        cost: Of an all-gather or a reduce-scatter of so many bytes.
    """
    begins = [0.0, *(bucket.ready for bucket in buckets[:-1])]
    ends = [*(bucket.ready for bucket in buckets[:-1]), backward]
    shares = [(end - begin) / backward if backward else 0.0 for begin, end in zip(begins, ends, strict=True)]
    sizes = [bucket.size for bucket in buckets]
    link = _Link(cost)
    now = 0.0
    for backwards in (False, True):
        order = range(len(sizes)) if backwards else range(len(sizes) - 1, -1, -1)
        places = list(order)
        gathered = link.send(sizes[places[0]], now) if places else now
        for at, block in enumerate(places):
            now = max(now, gathered)
            if at + 1 < len(places):
                gathered = link.send(sizes[places[at + 1]], now)
            now += shares[block] * (backward if backwards else forward)
            if backwards:
                link.send(sizes[block], now)
    seconds = max(now, link.free)
    return Overlapped(seconds, link.busy, seconds - forward - backward)


class _Link:
    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self.free = self.busy = 0.0

    def send(self, size: float, ready: float) -> float:
        """Returns when a collective that is ready now has ended."""
        took = self._cost(size)
        self.free = max(self.free, ready) + took
        self.busy += took
        return self.free
