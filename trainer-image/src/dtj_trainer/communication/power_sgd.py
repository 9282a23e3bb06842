"""PowerSGD: each matrix is sent as two thin factors, found by one step of power iteration.

Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
algorithm 1 with warm start. torch's hook does the same with one bucket; with more of them it starts collectives in
the callbacks of others, whose order differs between ranks, and gloo aborts. Here the buckets' collectives follow one
another, and one bucket is computed while another one is sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dtj_trainer.communication.compressor import Compressor, Item, Place
from dtj_trainer.communication.config import CommunicationConfig

SMALLEST = 1e-12
"""Directions whose share of the squared length is below this are rounding errors."""
BLOCK = 2**17
"""Elements of a block of rows: half a megabyte, which the second cache of a core holds."""


class _Bucket(NamedTuple):
    """One bucket on its way."""

    items: Sequence[Item]
    gradients: Sequence[torch.Tensor]
    """With the residual in them."""
    factors: Sequence[torch.Tensor]
    """P of each item, as rows."""
    work: dist.Work | None


class PowerSgd(Compressor):
    """Factors lie as rows, (rank, n) and (rank, m): products with MKL are up to ten times slower with thin columns."""

    def __init__(self, group: Place, config: CommunicationConfig) -> None:
        super().__init__(group)
        self._config = config
        self._right: dict[str, torch.Tensor] = {}
        """Q of each item, as rows, from which the next step begins."""
        self._begun: list[_Bucket] = []
        self._mean = torch.empty(0)

    def accepts(self, name: str, shape: torch.Size) -> bool:
        """Returns whether the factors have at most half the elements of the matrix."""
        n, m = shape[0], shape[1:].numel()
        return 2 * self._config.rank_of(name) * (n + m) <= n * m

    def prepare(self, items: Sequence[Item], flat: torch.Tensor) -> None:
        """Draws the first right factors, the same ones on all ranks, by the names of the parameters."""
        super().prepare(items, flat)
        for item in items:
            self._right[item.name] = self._drawn(item, item.name)

    @torch.no_grad()
    def begin(self, items: Sequence[Item], gradients: Sequence[torch.Tensor]) -> None:
        """Sends P = M·Q of a bucket, while the backward pass computes the next one."""
        sizes = [self._rank(item) * item.shape[0] for item in items]
        sent = torch.empty(sum(sizes), device=self.flat.device)
        parts = zip(items, sent.split_with_sizes(sizes), strict=True)
        factors = [part.view(self._rank(item), -1) for item, part in parts]
        for item, gradient, p in zip(items, gradients, factors, strict=True):
            matrix, right = _matrix(gradient), self._right[item.name]
            for rows in _blocks(matrix):
                matrix[rows].add_(item.matrix[rows])
                torch.mm(right, matrix[rows].t(), out=p[:, rows])
            _put_back(matrix, gradient)
        self._begun.append(_Bucket(items, gradients, factors, dist.all_reduce(sent, async_op=True)))

    def discard(self) -> None:
        """Waits for what is on its way."""
        for bucket in self._begun:
            self._wait(bucket.work)
        self._begun.clear()

    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Sends Q = Mᵀ·P with orthonormal P of each bucket; the gradient is P·Qᵀ."""
        begun, self._begun = self._begun, []
        sending = []
        for bucket in begun:
            self._wait(bucket.work)
            for _, alike in groupby(bucket.factors, key=lambda p: p.shape):
                # Factors of one shape lie end to end.
                first, *others = alike
                orthonormalize(first.as_strided((1 + len(others), *first.shape), (first.numel(), first.shape[1], 1)))
            sizes = [self._right[item.name].numel() for item in bucket.items]
            sent = torch.empty(sum(sizes), device=self.flat.device)
            for item, gradient, p, q in zip(
                bucket.items, bucket.gradients, bucket.factors, sent.split_with_sizes(sizes), strict=True
            ):
                self._right[item.name] = right = q.view(self._rank(item), -1)
                torch.mm(p, _matrix(gradient), out=right)
            sending.append(dist.all_reduce(sent.div_(self.group.world_size), async_op=True))
        for bucket, work in zip(begun, sending, strict=True):
            self._wait(work)
            for item, gradient, p in zip(bucket.items, bucket.gradients, bucket.factors, strict=True):
                matrix, right = _matrix(gradient), self._right[item.name]
                for rows in _blocks(matrix):
                    # One buffer for all blocks, because fresh memory costs a fault for each page.
                    mean = self._mean_like(matrix[rows])
                    torch.mm(p[:, rows].t(), right, out=mean)
                    torch.sub(matrix[rows], mean, out=item.matrix[rows])
                    matrix[rows].copy_(mean)
                _put_back(matrix, gradient)
                self._replace_lost(item, step)

    def sent_bytes(self, step: int) -> int:
        """Returns the bytes of both factors."""
        return 4 * sum(self._rank(item) * (item.shape[0] + item.shape[1:].numel()) for item in self.items)

    def state_dict(self) -> dict[str, Any]:
        """Returns the right factors."""
        return {name: q.cpu().clone() for name, q in self._right.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the factors, but not those of another rank or of another model."""
        for name, q in self._right.items():
            saved = state.get(name)
            if saved is not None and saved.shape == q.shape:
                self._right[name] = saved.to(q.device)

    def _rank(self, item: Item) -> int:
        return self._right[item.name].shape[0]

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            with self.waiting():
                work.wait()

    def _mean_like(self, block: torch.Tensor) -> torch.Tensor:
        if self._mean.numel() < block.numel() or self._mean.device != block.device:
            self._mean = torch.empty(block.numel(), device=block.device)
        return self._mean[: block.numel()].view(block.shape)

    def _replace_lost(self, item: Item, step: int) -> None:
        """Draws new rows for those that are zero, which power iteration can't leave."""
        q = self._right[item.name]
        lost = q.square().sum(1) == 0
        if bool(lost.any()):
            q[lost] = self._drawn(item, f"{item.name}/{step}")[lost]

    def _drawn(self, item: Item, seed: str) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
        shape = (self._config.rank_of(item.name), item.shape[1:].numel())
        return torch.randn(shape, generator=drawn).to(self.flat.device)


def orthonormalize(rows: torch.Tensor) -> None:
    """Makes the rows of each matrix orthogonal and of length 1 in place; a row that depends on others becomes zero.

    The eigenvectors of the small Gram matrix in float64 give the rows in two thin products, where QR and Gram-Schmidt
    go row by row. Rows that are not finite become NaN, so that the training reports them, as without compression.
    """
    wide = rows.double()
    gram = (wide @ wide.mT).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # eigh would raise an error of its own
    values, vectors = torch.linalg.eigh(gram)
    tiny = torch.finfo(torch.float64).tiny
    kept = values > SMALLEST * values[..., -1:].clamp(min=tiny)
    scale = torch.where(kept, values.clamp(min=tiny).rsqrt(), 0.0)
    rows.copy_((scale.unsqueeze(-1) * vectors.mT) @ wide)


def _matrix(gradient: torch.Tensor) -> torch.Tensor:
    """Returns a gradient as a matrix: the first dimension by all others. A copy if it lies in another order."""
    return gradient.reshape(gradient.shape[0], -1)


def _put_back(matrix: torch.Tensor, gradient: torch.Tensor) -> None:
    """Writes a matrix that `_matrix` had to copy back into the gradient."""
    if matrix.data_ptr() != gradient.data_ptr():
        gradient.copy_(matrix.view(gradient.shape))


def _blocks(matrix: torch.Tensor) -> Iterator[slice]:
    """Yields runs of rows that stay in a core's cache from one pass to the next; all rows on a GPU."""
    n, m = matrix.shape
    rows = n if matrix.is_cuda else max(1, BLOCK // m)
    for first in range(0, n, rows):
        yield slice(first, min(n, first + rows))
