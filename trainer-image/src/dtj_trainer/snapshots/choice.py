"""The snapshot that a restarted group takes, decided from what all ranks have found (pure).

All ranks decide from the same list, so they decide alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["memory", "replica", "partner"]
MOST_ATTEMPTS = 3
"""After so many attempts that took no snapshot, the state itself may end them: the checkpoint's turn comes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A valid snapshot in the shared memory of one pod."""

    pod: int
    name: str
    """File name in that pod."""
    owner: int
    """The rank whose state it is."""
    world_size: int
    attempt: int
    started: int
    step: int
    layout: str
    whole_layout: str
    shard: int
    shards: int
    manifest_bytes: int
    blob_bytes: int
    private_bytes: int
    data_bytes: int
    private_digest: str
    data_digest: str
    has_data: bool

    @property
    def line(self) -> tuple[int, int, int, int]:
        """Snapshots of one line and step fit together; the newest line comes first."""
        return (self.attempt, self.step, self.started, self.world_size)


class Unusable(Exception):
    """A choice that no rank has loaded; all ranks raise it alike."""

    def __init__(self, damaged: Iterable[tuple[int, str]] = ()) -> None:
        """Takes pod and name of the files that are not as they were chosen; none if they do not fit together."""
        super().__init__("a chosen snapshot is not as it was")
        self.damaged = frozenset(damaged)


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """The newest checkpoint on the volume."""

    step: int = -1
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Pieces:
    """The two parts that one rank loads, each from any pod."""

    private: Found
    data: Found


@dataclass(frozen=True, slots=True)
class Choice:
    """The step that all ranks load, and from where."""

    step: int
    line: tuple[int, int, int, int]
    pieces: tuple[Pieces, ...]
    """By rank."""
    source: Source
    """The farthest that any rank's state comes from."""
    taken_by: int
    """The number of ranks that took the snapshot."""
    shards: tuple[Found, ...] = ()
    """The whole state, by shard: all ranks divide it again, and `pieces` is empty."""
    first: Found | None = None
    """With `shards`: the private part that all ranks load, that of the lowest rank."""


def choose(
    found: Sequence[Found],
    *,
    pods: Sequence[int],
    layouts: Sequence[str],
    attempt: int,
    volume: Volume,
    whole_layout: str = "",
) -> Choice | None:
    """Returns the newest snapshot that all ranks can load; None if the volume's checkpoint is newer.

    A line is what one attempt did from where it began. A newer attempt's line comes first even where
    an older one got farther: the older was abandoned. A checkpoint of a later attempt at a lower step
    shows the same.

    At the same world size each rank gets its own state. After a change of the world size a rank takes
    the state of any rank that held the same shards (all of it, where nothing is sharded). If there is
    none, all shards of the old world must be there, and the ranks divide them again.

    Args:
        found: All ranks' findings, of this job.
        pods: The pod of each rank.
        layouts: The layout of each rank's state.
        attempt: The attempt that begins. Its own snapshots are of another State of this process.
        volume: The newest checkpoint.
        whole_layout: The layout of the whole state; "" if it can't be divided again.
    """
    fitting = [
        f
        for f in found
        if f.attempt < attempt
        and (f.attempt >= attempt - MOST_ATTEMPTS or volume.step < 0)
        and f.step >= volume.step
        and f.attempt >= volume.attempt
    ]
    for line in sorted({f.line for f in fitting}, reverse=True):
        same = [f for f in fitting if f.line == line]
        taken_by = line[3]
        resized = taken_by != len(pods)
        if resized:
            pieces = [_any_pieces(pod, layout, same) for pod, layout in zip(pods, layouts, strict=True)]
        else:
            same = [f for f in same if f.owner < len(layouts) and f.layout == layouts[f.owner]]
            pieces = [_pieces(rank, pod, same) for rank, pod in enumerate(pods)]
        complete = [p for p in pieces if p is not None]
        if len(complete) == len(pods):
            kinds: list[Source] = [_source(rank, pods[rank], p, same, resized) for rank, p in enumerate(complete)]
            source: Source = "partner" if "partner" in kinds else "replica" if "replica" in kinds else "memory"
            return Choice(line[1], line, tuple(complete), source, taken_by)
        if resized and (shards := _shards(same, whole_layout)):
            first = min((f for f in same if f.whole_layout == whole_layout), key=lambda f: (f.owner, f.pod, f.name))
            source = "partner" if len({*pods, *(f.pod for f in shards)}) > 1 else "memory"
            return Choice(line[1], line, (), source, taken_by, shards, first)
    return None


def _shards(same: Sequence[Found], whole_layout: str) -> tuple[Found, ...]:
    """Returns a file for each shard of the old world; () if one is nowhere, or not alike on its replicas."""
    fitting = [f for f in same if whole_layout and f.whole_layout == whole_layout]
    counts = {f.shards for f in fitting}
    out = []
    for number in range(counts.pop() if len(counts) == 1 else 0):
        alike = [f for f in fitting if f.shard == number]
        whole = [f for f in alike if f.has_data]
        if not whole or len({(f.data_digest, f.data_bytes) for f in alike}) > 1:
            return ()
        out.append(min(whole, key=lambda f: (f.pod, f.owner, f.name)))
    return tuple(out)


def _any_pieces(pod: int, layout: str, same: Sequence[Found]) -> Pieces | None:
    """Returns the state of a rank that held the same shards in another world.

    The private part is that of the lowest rank, as in a checkpoint. None if those ranks' data
    differ: then the script keeps a state of its own on each rank.
    """
    fitting = [f for f in same if f.layout == layout]
    if len({(f.data_digest, f.data_bytes) for f in fitting}) != 1:
        return None
    private = min(fitting, key=lambda f: (f.owner, f.pod != pod, f.pod, f.name))
    whole = [f for f in fitting if f.has_data]
    return Pieces(private, min(whole, key=lambda f: (f.pod != pod, f.pod, f.owner, f.name))) if whole else None


def _pieces(rank: int, pod: int, same: Sequence[Found]) -> Pieces | None:
    """Returns where a rank's state is: its own file, else a partner's copy, its data also at a replica's."""
    mine = sorted((f for f in same if f.owner == rank), key=lambda f: (f.pod != pod, not f.has_data, f.name))
    if not mine:
        return None
    private = mine[0]
    whole = [f for f in mine if f.has_data]
    if whole and whole[0].pod == pod:
        return Pieces(private, whole[0])
    # The digest of the lost data is in the private part: what has it is a true replica.
    wanted = (private.data_digest, private.data_bytes)
    replicas = [f for f in same if f.has_data and (f.data_digest, f.data_bytes) == wanted]
    replicas.sort(key=lambda f: (f.pod != pod, f.owner != rank, f.pod, f.name))
    return Pieces(private, replicas[0]) if replicas else None


def _source(rank: int, pod: int, pieces: Pieces, same: Sequence[Found], resized: bool) -> Source:
    data = pieces.data
    if data.pod == pod and (resized or data.owner == rank):
        return "memory"
    others = any(f.owner != rank and f.data_digest == data.data_digest for f in same)
    return "replica" if others or resized else "partner"
