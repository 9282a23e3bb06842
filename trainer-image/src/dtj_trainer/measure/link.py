"""The link between ranks: latency and bandwidth by least squares over all-reduces of many sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError

SIZES = (*(1024 * 4**power for power in range(7)), 8 * 1024 * 1024)
"""Bytes of an all-reduce: 1 KiB to 4 MiB, and 8 MiB."""
TRIAL_BYTES, MOST_REPEATS = 4 * 1024 * 1024, 64
"""A trial repeats a small all-reduce until it has moved so many bytes.

A link with a token bucket, as clouds have them, carries the first bytes after a pause faster than the rest.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """The fields of link.json."""

    latency_seconds: float
    """Of one message of a ring, with the work of the software (alpha)."""
    bytes_per_second: float
    """Of one direction, with the additions of a reduction (1 / beta)."""
    worst_error: float
    """The largest distance of a measured all-reduce from these two numbers, as a share."""
    ranks: int
    backend: str
    seconds: dict[int, float]
    """The fastest trial by bytes."""

    def document(self) -> dict[str, Any]:
        """Returns the content of link.json."""
        return {"version": 1} | asdict(self)


def measure_link(group: Group, *, trials: int) -> MeasuredLink:
    """Times all-reduces over all ranks; a collective. The ranks should each be on a node of their own.

    Raises ConfigError for fewer than two ranks.
    """
    if trials < 1:
        raise ConfigError(f"--trials {trials}: write 1 or more")
    if group.world_size < 2:
        raise ConfigError(
            "a link needs two ranks: start it on two nodes, as with torchrun --nnodes 2 --nproc-per-node 1 "
            "-m dtj_trainer.measure link"
        )
    device = group.device if group.backend == "nccl" else torch.device("cpu")
    seconds: dict[int, float] = {}
    for size in SIZES:
        buffer = torch.zeros(size // 4, device=device)
        repeats = min(MOST_REPEATS, max(1, TRIAL_BYTES // size))
        took = [_timed(buffer, repeats) for _ in range(trials + 1)][1:]  # the first one connects
        # A rank that leaves early had less to wait for: the slowest rank has the whole time. Of the trials the
        # fastest counts, because other work on the nodes makes an all-reduce slower and never faster.
        slowest = group.gather(torch.tensor(took, dtype=torch.float64)).max(dim=0).values
        seconds[size] = min(slowest.tolist())
    latency, bandwidth = fit(seconds, group.world_size)
    errors = [abs(ring(size, group.world_size, latency, bandwidth) / took - 1) for size, took in seconds.items()]
    return MeasuredLink(
        latency_seconds=latency,
        bytes_per_second=bandwidth,
        worst_error=max(errors),
        ranks=group.world_size,
        backend=group.backend,
        seconds=seconds,
    )


def _timed(buffer: torch.Tensor, repeats: int) -> float:
    """Returns the mean seconds of all-reduces one after the other."""
    began = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(buffer)
    if buffer.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def ring(size: float, ranks: int, latency: float, bandwidth: float) -> float:
    """Returns the seconds of a ring all-reduce of `size` bytes by the alpha-beta model."""
    return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)


def fit(seconds: dict[int, float], ranks: int) -> tuple[float, float]:
    """Returns (latency in seconds, bandwidth in bytes per second) of ring all-reduces, by least squares.

    Each squared error is divided by its time. Without that, the large messages alone would decide, and the latency
    would be their noise. Divided by the square of the time, messages of 64 KiB, whose latency gloo hides, raised the
    bandwidth of a link of 200 Mbit/s to 212. A latency below 0 becomes 0.

    Args:
        seconds: By the bytes of the all-reduce, of two sizes or more.
        ranks: Of the ring.
    """
    # took = latency * rounds + (1 / bandwidth) * bytes that a link carries, all of it over the root of took
    rows = [
        (2 * (ranks - 1) / math.sqrt(took), 2 * (ranks - 1) / ranks * size / math.sqrt(took))
        for size, took in seconds.items()
    ]
    right = [math.sqrt(took) for took in seconds.values()]
    if len(rows) < 2:
        raise ValueError("a line needs all-reduces of two sizes")
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in _products(rows))
    a, b = (sum(pair[at] * value for pair, value in zip(rows, right, strict=True)) for at in (0, 1))
    latency = (a * bb - b * ab) / (aa * bb - ab * ab)
    if latency < 0:
        return 0.0, bb / b
    return latency, bb / (b - latency * ab)


def _products(rows: Sequence[tuple[float, float]]) -> Sequence[Sequence[tuple[float, float]]]:
    return [(x, x) for x, _ in rows], rows, [(y, y) for _, y in rows]
