"""The work of a thread on each snapshot: checks it, makes it valid, and sends the partner its copy.

A snapshot counts once every rank has its own. A snapshot whose weights are not finite on some rank
counts on none, so the one before it stays: a restart would only repeat what went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dtj_trainer.distributed.process_group import Group, new_gloo_group
from dtj_trainer.snapshots import partner
from dtj_trainer.snapshots.beside import BesideClock
from dtj_trainer.snapshots.place import Place
from dtj_trainer.snapshots.slot import HEADER_BYTES, Header, Slot, digest

_CHECKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FINE, _FAILED, _SPOILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Prepared:
    """A copied state whose file is not valid yet."""

    slot: Slot
    header: Header
    """Without its digests."""
    trained: Sequence[torch.Tensor]
    """The trained weights in the file, which must be finite."""


@dataclass(frozen=True, slots=True)
class Done:
    """The thread's result of one snapshot."""

    problem: str
    """Why some rank has failed; "" if none has."""
    cpu_seconds: float
    """Beside the training thread."""
    spoiled: bool = False
    """Whether some rank's weights are not finite, so that no rank keeps this snapshot."""


class Completion:
    """Completes one rank's snapshots, in a thread; all ranks complete the same ones."""

    def __init__(self, group: Group, place: Place, room: int) -> None:
        """Takes the bytes that the pod's shared memory still has for partners' copies as `room`. A collective."""
        self.warning = ""
        """Why partners get no copies; empty once it is reported."""
        self.beside = BesideClock()
        self._group, self._place, self._room = group, place, room
        self._process_group = new_gloo_group(group)
        self._paired = False
        self._exchange: partner.Exchange | None = None

    def finish(self, prepared: Prepared | None, problem: str, copied: torch.cuda.Event | None) -> Done:
        """Makes the file valid, and returns once every rank has; the same result on all of them."""
        if copied is not None:
            copied.synchronize()
        size: partner.Size | None = None
        header: Header | None = None
        spoiled = False
        if prepared is not None:
            slot, header = prepared.slot, prepared.header
            private = slot.bytes[HEADER_BYTES : HEADER_BYTES + header.private_bytes]
            data = slot.bytes[HEADER_BYTES + header.private_bytes :]
            header = replace(header, private_digest=digest(private), data_digest=digest(data))
            spoiled = not all(map(is_finite, prepared.trained))
            if not spoiled:
                slot.commit(header)
            size = partner.Size(
                pod=self._place.pod,
                private_bytes=header.private_bytes,
                data_bytes=header.data_bytes,
                data_digest=header.data_digest,
                room=self._room,
            )
        problem, spoiled = self._agree(problem, spoiled)
        if spoiled and prepared is not None:
            prepared.slot.wipe()
        elif not problem and prepared is not None and header is not None and size is not None:
            if not self._paired:
                self._pair(size)
            if self._exchange is not None:
                try:
                    self._exchange.swap(prepared.slot, header)
                except OSError as e:
                    problem = f"rank {self._group.rank}, its partner's copy: {e}"
                problem, _ = self._agree(problem)
        return Done(problem, self.beside.end(), spoiled)

    def _pair(self, mine: partner.Size) -> None:
        """Finds the partner, once it is known which ranks have the same data."""
        self._paired = True
        sizes: list[Any] = [None] * self._group.world_size
        if self._group.world_size > 1:
            dist.all_gather_object(sizes, mine, group=self._process_group)
        else:
            sizes = [mine]
        found = partner.pair([size.pod for size in sizes], self._group.rank)
        if found is None:
            return
        whole = partner.sent_whole(sizes)
        if lacks := partner.lacking(sizes, whole):
            self.warning = (
                f"copies for partners are off, and a lost pod resumes from the newest checkpoint: they need "
                f"{mebibytes(lacks[0])} of a pod's shared memory (/dev/shm), and {mebibytes(lacks[1])} are free"
            )
            return
        partners = partner.Partners(*found, whole)
        path = self._place.path("held", partners.source)
        self._exchange = partner.Exchange(partners, self._process_group, path)

    def _agree(self, problem: str, spoiled: bool = False) -> tuple[str, bool]:
        """Returns the first rank's problem ("" if none has one), and whether some rank's snapshot is spoiled.

        Every rank returns only when all have called.
        """
        if self._group.world_size == 1:
            return problem, spoiled
        mine = _FAILED if problem else _SPOILED if spoiled else _FINE
        rows = [torch.zeros(1, dtype=torch.int64) for _ in range(self._group.world_size)]
        dist.all_gather(rows, torch.tensor([mine]), group=self._process_group)
        every = {int(row) for row in rows}
        if _FAILED not in every:
            return "", _SPOILED in every
        texts: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(texts, problem, group=self._process_group)
        return str(next(text for text in texts if text)), False


def is_finite(tensor: torch.Tensor) -> bool:
    """Returns whether all elements of a tensor are finite; True for types that can't be checked."""
    if tensor.dtype not in _CHECKED or not tensor.numel():
        return True
    # One pass without a copy. Finite values may add up to more than the type holds.
    total = tensor.sum(dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32)
    return bool(total.isfinite()) or bool(tensor.isfinite().all())


def mebibytes(size: int) -> str:
    """Returns a size as a person reads it."""
    return f"{size / 2**20:,.1f} MiB"
