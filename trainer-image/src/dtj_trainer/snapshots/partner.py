"""A rank's partner in another pod: what it is sent after each snapshot, so that a lost pod loses nothing.

Where another pod has a replica of the data, only the private part is sent, some tens of kilobytes.
Where no other pod has it (sharded state), the whole snapshot is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from dtj_trainer.snapshots.slot import HEADER_BYTES, Header, Slot

CHUNK_BYTES = 64 << 20
"""Bytes of one message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Sizes of one rank's first snapshot, for the other ranks."""

    pod: int
    private_bytes: int
    data_bytes: int
    data_digest: str
    room: int
    """Bytes that its pod's shared memory may still take, once the pod's own snapshots are counted."""


@dataclass(frozen=True, slots=True)
class Partners:
    """The partners of one rank; computed alike on all ranks."""

    to: int
    """The rank that holds a copy of mine."""
    source: int
    """The rank whose copy I hold."""
    whole: tuple[bool, ...]
    """By rank: whether its whole snapshot is sent, and not only the private part."""


def pair(pods: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Returns (the rank that holds my copy, the rank whose copy I hold), in pods that are half of all pods away.

    Neighbours that are lost together, or the upper half that is scaled away, then never take a
    snapshot and its copy. None if there is one pod, or if pods have different numbers of ranks.
    """
    members: dict[int, list[int]] = {}
    for each, pod in enumerate(pods):
        members.setdefault(pod, []).append(each)
    order = sorted(members)
    if len(order) < 2 or len({len(ranks) for ranks in members.values()}) > 1:
        return None
    mine, place = order.index(pods[rank]), members[pods[rank]].index(rank)
    half = len(order) // 2
    return members[order[(mine + half) % len(order)]][place], members[order[mine - half]][place]


def sent_whole(sizes: Sequence[Size]) -> tuple[bool, ...]:
    """Returns by rank whether no other pod has its data."""
    pods: dict[str, set[int]] = {}
    for size in sizes:
        pods.setdefault(size.data_digest, set()).add(size.pod)
    return tuple(len(pods[size.data_digest]) < 2 for size in sizes)


def lacking(sizes: Sequence[Size], whole: Sequence[bool]) -> tuple[int, int] | None:
    """Returns (bytes that copies need, bytes that are free) of the pod that lacks most; None if all have room.

    Two copies of each are held, so that one is whole at any instant.
    """
    pods = [size.pod for size in sizes]
    need: dict[int, int] = {}
    for rank, size in enumerate(sizes):
        found = pair(pods, rank)
        if found is None:
            return None
        source = sizes[found[1]]
        held = HEADER_BYTES + source.private_bytes + (source.data_bytes if whole[found[1]] else 0)
        need[size.pod] = need.get(size.pod, 0) + 2 * held
    room = {pod: min(size.room for size in sizes if size.pod == pod) for pod in need}
    worst = max(need, key=lambda pod: need[pod] - room[pod])
    return (need[worst], room[worst]) if need[worst] > room[worst] else None


class Exchange:
    """Sends each snapshot to one rank, and keeps another's, in two files in turn."""

    def __init__(self, partners: Partners, group: dist.ProcessGroup, path: Path) -> None:
        """Keeps the copies under `path`, to which the number is added."""
        self._partners, self._group, self._path = partners, group, path
        self._slots: list[Slot | None] = [None, None]
        self._next = 0

    def swap(self, mine: Slot, header: Header) -> None:
        """Sends this rank's snapshot, and receives the other's at the same time.

        Raises OSError if there is no room for it, RuntimeError if a peer is gone.
        """
        sent_header = torch.frombuffer(bytearray(header.dump()), dtype=torch.uint8)
        received = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        self._both(sent_header, received)
        theirs = Header.parse(bytes(received.numpy()))
        if theirs is None:
            raise RuntimeError("a partner sent no header")
        size = HEADER_BYTES + theirs.private_bytes
        size += theirs.data_bytes if self._partners.whole[theirs.rank] else 0
        end = HEADER_BYTES + header.private_bytes
        end += header.data_bytes if self._partners.whole[header.rank] else 0
        slot, problem = self._slot(size)
        target = torch.empty(size, dtype=torch.uint8) if slot is None else slot.bytes
        self._both(mine.bytes[HEADER_BYTES:end], target[HEADER_BYTES:size])
        if slot is None:
            # Only now, because the other ranks are in the middle of the same exchange.
            raise OSError(problem)
        slot.commit(theirs)

    def _slot(self, size: int) -> tuple[Slot | None, str]:
        slot, place = self._slots[self._next], self._next
        self._next = 1 - place
        if slot is None or slot.size != size:
            self._slots[place] = slot = None
            try:
                self._slots[place] = slot = Slot(self._path.with_name(f"{self._path.name}-{place}"), size)
            except OSError as e:
                return None, str(e)
        slot.wipe()
        return slot, ""

    def _both(self, out: torch.Tensor, into: torch.Tensor) -> None:
        works = []
        for chunk in chunks(out):
            works.append(dist.isend(chunk, self._partners.to, group=self._group))
        for chunk in chunks(into):
            works.append(dist.irecv(chunk, self._partners.source, group=self._group))
        for work in works:
            if work is not None:
                work.wait()


def send(content: torch.Tensor, to: int, group: dist.ProcessGroup) -> None:
    """Sends bytes to a rank that calls `receive`."""
    for chunk in chunks(content):
        dist.send(chunk, to, group=group)


def receive(size: int, source: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the bytes that a rank sends."""
    content = torch.empty(size, dtype=torch.uint8)
    for chunk in chunks(content):
        dist.recv(chunk, source, group=group)
    return content


def chunks(content: torch.Tensor) -> list[torch.Tensor]:
    """Returns the messages in which bytes are sent."""
    return [content[at : at + CHUNK_BYTES] for at in range(0, content.numel(), CHUNK_BYTES)]
