"""PowerSGD: each matrix is sent as two thin factors, found by one step of power iteration.

Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
algorithm 1 with warm start. torch's hook does the same with one bucket; with more of them it starts collectives in
the callbacks of others, whose order differs between ranks, and gloo aborts. Here a step has two collectives.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from dtj_trainer.communication.compressor import Compressor, Item, Place

SMALLEST = 1e-12
"""Directions whose share of the squared length is below this are rounding errors."""


class PowerSgd(Compressor):
    """Factors lie as rows, (rank, n) and (rank, m): products with MKL are up to ten times slower with thin columns."""

    def __init__(self, group: Place, rank: int) -> None:
        super().__init__(group)
        self.rank = rank
        self._p = self._q = torch.empty(0)
        self._p_views: list[torch.Tensor] = []
        self._q_views: list[torch.Tensor] = []

    def accepts(self, shape: torch.Size) -> bool:
        """Returns whether the factors have at most half the elements of the matrix."""
        n, m = shape[0], shape[1:].numel()
        return 2 * self.rank * (n + m) <= n * m

    def prepare(self, items: Sequence[Item], flat: torch.Tensor) -> None:
        """Draws the first right factors, the same ones on all ranks, by the names of the parameters."""
        super().prepare(items, flat)
        shapes = [(item.shape[0], item.shape[1:].numel()) for item in items]
        self._q = torch.empty(sum(self.rank * m for _, m in shapes), device=flat.device)
        self._p_sizes = [self.rank * n for n, _ in shapes]
        self._q_views = [
            view.view(self.rank, m)
            for view, (_, m) in zip(self._q.split_with_sizes([self.rank * m for _, m in shapes]), shapes, strict=True)
        ]
        for item, q in zip(items, self._q_views, strict=True):
            q.copy_(_drawn(item.name, q.shape))

    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Sends P = M·Q, then Q = Mᵀ·P with orthonormal P; the gradient is P·Qᵀ."""
        sent = torch.empty(sum(self._p_sizes), device=self.flat.device)
        factors = [part.view(self.rank, -1) for part in sent.split_with_sizes(self._p_sizes)]
        for item, q, p in zip(self.items, self._q_views, factors, strict=True):
            torch.mm(q, item.matrix.t(), out=p)
        with self.waiting():
            dist.all_reduce(sent)
        for item, q, p in zip(self.items, self._q_views, factors, strict=True):
            orthonormalize(p)
            torch.mm(p, item.matrix, out=q)
        self._q.div_(self.group.world_size)
        with self.waiting():
            dist.all_reduce(self._q)
        for item, gradient, q, p in zip(self.items, gradients, self._q_views, factors, strict=True):
            if gradient.is_contiguous():
                torch.mm(p.t(), q, out=gradient.view(item.matrix.shape))
            else:
                gradient.copy_(torch.mm(p.t(), q).view(item.shape))
            item.residual.sub_(gradient)
            _replace_lost(q, item.name, step)

    def sent_bytes(self, step: int) -> int:
        """Returns the bytes of both factors."""
        return 4 * (sum(self._p_sizes) + self._q.numel())

    def state_dict(self) -> dict[str, Any]:
        """Returns the right factors, from which the next step begins."""
        return {item.name: q.cpu().clone() for item, q in zip(self.items, self._q_views, strict=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the factors, but not those of another rank or of another model."""
        for item, q in zip(self.items, self._q_views, strict=True):
            saved = state.get(item.name)
            if saved is not None and saved.shape == q.shape:
                q.copy_(saved)


def orthonormalize(rows: torch.Tensor) -> None:
    """Makes rows orthogonal and of length 1 in place; a row that depends on others becomes zero.

    Two rounds with the eigenvectors of the small Gram matrix in float64: a product of thin matrices instead of a loop
    over rows, which is what QR and Gram-Schmidt are on a CPU.
    """
    for _ in range(2):
        wide = rows.double()
        values, vectors = torch.linalg.eigh(wide @ wide.t())
        kept = values > SMALLEST * values[-1].clamp(min=torch.finfo(torch.float64).tiny)
        scale = torch.where(kept, values.clamp(min=torch.finfo(torch.float64).tiny).rsqrt(), 0.0)
        rows.copy_((scale.unsqueeze(1) * vectors.t()) @ wide)


def _replace_lost(q: torch.Tensor, name: str, step: int) -> None:
    """Draws new rows for those that are zero, which power iteration can't leave."""
    lost = q.square().sum(1) == 0
    if bool(lost.any()):
        q[lost] = _drawn(f"{name}/{step}", q.shape).to(q.device)[lost]


def _drawn(name: str, shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
