"""Takes a snapshot after a restart: all ranks look, choose alike, fetch, check, and load, or none does."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from dtj_trainer.checkpoint import rng
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots import slot
from dtj_trainer.snapshots.choice import Choice, Found, Unusable, Volume, choose
from dtj_trainer.snapshots.contents import LiveState, Part
from dtj_trainer.snapshots.image import unpack
from dtj_trainer.snapshots.partner import receive, send
from dtj_trainer.snapshots.place import Place
from dtj_trainer.snapshots.reshard import Resharding
from dtj_trainer.snapshots.slot import Header, Snapshot

log = logging.getLogger(__name__)
Fetched = Callable[[], tuple[dict[str, Part], bytes]]
"""Unpacks (tensors by name, blob) of what has arrived whole."""


class Restore:
    """One look into the shared memory of all pods; a collective, like all of its methods.

    A rank's own error is its vote: all ranks learn of it before any of them acts on it.
    """

    def __init__(self, place: Place, group: Group, live: LiveState) -> None:
        self._place, self._group, self._live = place, group, live
        # The ranks of a pod share its files, and the reading of them.
        everywhere = group.all_objects((place.pod, *self._own_layouts()))
        self.pods = [pod for pod, *_ in everywhere]
        self._layouts = [layout for _, layout, _ in everywhere]
        wholes = {whole for *_, whole in everywhere}
        self._whole_layout = wholes.pop() if len(wholes) == 1 else ""
        mates = [rank for rank, pod in enumerate(self.pods) if pod == place.pod]
        files = place.files()[mates.index(group.rank) :: len(mates)]
        self._snapshots = {path.name: snapshot for path in files if (snapshot := slot.read_any(path))}
        mine = [self._describe(s) for s in self._snapshots.values() if self._is_ours(s.header)]
        self._found = [found for rank in group.all_objects(mine) for found in rank]
        self._chosen: Choice | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no pod has a snapshot of this job."""
        return not self._found

    def choose(self, volume: Volume) -> Choice | None:
        """Returns what all ranks can load that is no older than the volume's checkpoint."""
        return choose(
            self._found,
            pods=self.pods,
            layouts=self._layouts,
            attempt=self._place.attempt,
            volume=volume,
            whole_layout=self._whole_layout,
        )

    def load(self, choice: Choice) -> bool:
        """Loads a choice. Returns False, with nothing changed, if a piece does not arrive whole.

        The next choice is another one then. Raises SnapshotError on all ranks if one of them can't load
        what has arrived whole.
        """
        problem = ""
        self._snapshots.clear()
        try:
            state = self._fetch_divided(choice) if choice.shards else self._fetch(choice)
        except Unusable as e:
            lost = e.damaged or {(f.pod, f.name) for f in self._found if f.line == choice.line}
            self._found = [f for f in self._found if (f.pod, f.name) not in lost]
            return False
        try:
            self._live.restore(*state())
        except Exception as e:  # noqa: BLE001 - a part's own load_state_dict may raise anything
            problem = f"rank {self._group.rank}: {type(e).__name__}: {e}"
        problems = [p for p in self._group.all_objects(problem) if p]
        if problems:
            raise SnapshotError(f"the snapshot of step {choice.step} does not load: {problems[0]}")
        if choice.taken_by != self._group.world_size:
            # No rank has a state of its own now, so all get what a checkpoint would give them.
            self._live.broadcast_buffers(self._group)
            rng.seed_resized(choice.step, self._group.rank)
        self._chosen = choice
        return True

    def forget(self) -> None:
        """Removes this pod's snapshots that were not loaded: of lines that are abandoned now, or damaged."""
        kept = set()
        if self._chosen:
            kept = {f.name for f in self._found if f.line == self._chosen.line and f.pod == self._place.pod}
        self._snapshots.clear()
        if self._group.rank == min(rank for rank, pod in enumerate(self.pods) if pod == self._place.pod):
            for path in self._place.files():
                if path.name not in kept:
                    path.unlink(missing_ok=True)

    def _own_layouts(self) -> tuple[str, str]:
        """Returns the layouts of this rank's state, and of the whole; "" if they can't be found."""
        try:
            return self._live.layout(self._group.world_size), self._live.whole_layout(self._group.world_size)
        except Exception as e:  # noqa: BLE001 - the other ranks wait for this rank's answer
            log.warning("no memory snapshot can be loaded: %s: %s", type(e).__name__, e)
            return "", ""

    def _fetch_divided(self, choice: Choice) -> Fetched:
        tensors, blob = Resharding(choice, self._group, self.pods, self._place.directory, self._live).fetch()
        return lambda: (tensors, blob)

    def _fetch(self, choice: Choice) -> Fetched:
        """Returns this rank's state. Raises Unusable on all ranks if a piece is not what was chosen.

        All ranks go through all pieces in the same order, so each message meets its receiver.
        """
        mine: list[torch.Tensor] = []
        damaged: list[tuple[int, str]] = []
        for owner, pieces in enumerate(choice.pieces):
            for found, is_data in ((pieces.private, False), (pieces.data, True)):
                content = self._move(found, owner, is_data)
                if owner == self._group.rank:
                    digest = found.data_digest if is_data else found.private_digest
                    if content is not None and slot.digest(content) == digest:
                        mine.append(content)
                    else:
                        damaged.append((found.pod, found.name))
        if everywhere := [file for files in self._group.all_objects(damaged) for file in files]:
            raise Unusable(everywhere)
        header = choice.pieces[self._group.rank].private
        return lambda: unpack(mine[0], mine[1], header.manifest_bytes, header.blob_bytes)

    def _move(self, found: Found, owner: int, is_data: bool) -> torch.Tensor | None:
        """Returns a piece on the rank that needs it; None on all others, or if the file is not as it was."""
        group = self._group
        size = found.data_bytes if is_data else found.private_bytes
        holders = [rank for rank, pod in enumerate(self.pods) if pod == found.pod]
        holder = owner if owner in holders else holders[owner % len(holders)]
        content: torch.Tensor | None = None
        if group.rank == holder:
            snapshot = slot.read_any(self._place.directory / found.name)
            if snapshot is not None:
                content = snapshot.data if is_data else snapshot.private
            if content is None or content.numel() != size:
                content = torch.zeros(size, dtype=torch.uint8)
        if holder == owner:
            return content
        if content is not None:
            send(content, owner, group.checkpoint)
            return None
        return receive(size, holder, group.checkpoint) if group.rank == owner else None

    def _is_ours(self, header: Header) -> bool:
        return (header.job, header.state) == (self._place.job, self._place.state)

    def _describe(self, snapshot: Snapshot) -> Found:
        header = snapshot.header
        return Found(
            pod=self._place.pod,
            name=snapshot.path.name,
            owner=header.rank,
            world_size=header.world_size,
            attempt=header.attempt,
            started=header.started,
            step=header.step,
            layout=header.layout,
            whole_layout=header.whole_layout,
            shard=header.shard,
            shards=header.shards,
            manifest_bytes=header.manifest_bytes,
            blob_bytes=header.blob_bytes,
            private_bytes=header.private_bytes,
            data_bytes=header.data_bytes,
            private_digest=header.private_digest,
            data_digest=header.data_digest,
            has_data=snapshot.data_is_here,
        )
