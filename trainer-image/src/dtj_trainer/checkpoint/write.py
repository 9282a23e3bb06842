"""Writes one checkpoint in the thread beside the training: each rank's files, then rank 0's commit.

Every stage is done by all ranks or by none: each reports its result to the others, over a separate
gloo group.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from dtj_contract import names
from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import OwnFiles, leaves
from dtj_trainer.checkpoint.files import HashedFiles
from dtj_trainer.checkpoint.folder import CommittedCheckpoint, FileEntry, Manifest
from dtj_trainer.checkpoint.planner import SavePlanner
from dtj_trainer.checkpoint.retention import to_remove
from dtj_trainer.distributed.flat_shard import FlatShard, StateDict
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import CheckpointError, LeaseLost
from dtj_trainer.torch_private import write_through

log = logging.getLogger(__name__)
SHARED_FILE = "shared.pt"
PRIVATE_FILE = "rank-%05d.pt"

T = TypeVar("T")
Outcome = Literal["committed", "failed", "lease-lost", "not-finite"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveResult:
    """The result of one save, the same on every rank."""

    step: int
    outcome: Outcome
    path: Path | None = None
    time: float = 0.0
    """Unix seconds of the commit."""
    message: str = ""
    write_seconds: float = 0.0
    """Seconds from hand-over to commit, beside the training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """A copy of what one rank has to write, so that the training can continue."""

    step: int
    sharded: StateDict
    """This rank's share of tensors."""
    own_files: Sequence[OwnFiles] = ()
    """Parts that write by themselves, while the training waits."""
    trained: Collection[str] = ()
    """Keys of the tensors that must be finite."""
    shared: StateDict
    private: StateDict
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Writes and commits what was staged. All ranks call its methods, each in its thread."""

    directory: Path
    group: Group
    config: CheckpointConfig
    attempt: int | None

    def write(self, staged: Staged) -> SaveResult:
        """Writes and commits, with up to `retries` retries after the volume failed.

        Removes an incomplete folder.
        """
        started = time.monotonic()
        if message := self._find_nonfinite(staged):
            return SaveResult(step=staged.step, outcome="not-finite", message=message)
        for left in range(self.config.retries, -1, -1):
            result = self._write_once(staged, started)
            if result.outcome != "committed" and self.group.rank == 0:
                # On a full volume this makes room for the next try.
                shutil.rmtree(self._incomplete(staged.step), ignore_errors=True)
            if result.outcome != "failed" or left == 0:
                return result
            log.warning("checkpoint of step %d: %s; retrying, %d left", staged.step, result.message, left)
            # All ranks have the same outcome, so all of them wait here.
            time.sleep(self.config.retry_seconds)
        raise AssertionError("unreachable: the loop returns")

    def _write_once(self, staged: Staged, started: float) -> SaveResult:
        rank, incomplete = self.group.rank, self._incomplete(staged.step)

        def make_room() -> None:
            if rank == 0:
                # An early check. The one that counts is at the commit.
                folder.check_lease(self.directory, self.attempt)
                shutil.rmtree(incomplete, ignore_errors=True)
                incomplete.mkdir(parents=True)

        def write() -> dict[str, FileEntry]:
            writer, files = FileSystemWriter(incomplete), HashedFiles()
            write_through(writer, files)
            save(staged.sharded, storage_writer=writer, planner=SavePlanner(), process_group=self.group.checkpoint)
            files.save(staged.private, incomplete / (PRIVATE_FILE % rank))
            if rank == 0:
                files.save(staged.shared, incomplete / SHARED_FILE)
            return files.entries

        def save_own() -> None:
            for part in staged.own_files:
                part.save_files(incomplete)

        try:
            self._on_all_ranks(make_room)
            files = {name: entry for entries in self._on_all_ranks(write) for name, entry in entries.items()}
            if staged.own_files:
                self._on_all_ranks(save_own)
                for entries in self._on_all_ranks(partial(self._hash_share, incomplete, set(files))):
                    files |= entries
            manifest = Manifest(
                step=staged.step,
                attempt=self.attempt or 0,
                world_size=self.group.world_size,
                time=time.time(),
                files=files,
                metrics=staged.metrics,
            )
            path = self._on_all_ranks(lambda: self._commit(incomplete, manifest) if rank == 0 else None)[0]
        except LeaseLost as e:
            return SaveResult(step=staged.step, outcome="lease-lost", message=str(e))
        except CheckpointError as e:
            return SaveResult(step=staged.step, outcome="failed", message=str(e))
        took = time.monotonic() - started
        return SaveResult(step=staged.step, outcome="committed", path=path, time=manifest.time, write_seconds=took)

    def _hash_share(self, incomplete: Path, known: Collection[str]) -> dict[str, FileEntry]:
        """Returns entries of this rank's share of the files that are not `known`, which are then on the volume."""
        paths = sorted(path for path in incomplete.rglob("*") if path.is_file())
        unknown = [path for path in paths if path.relative_to(incomplete).as_posix() not in known]
        entries = {}
        for path in unknown[self.group.rank :: self.group.world_size]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            folder.sync_folder(path.parent)
            entries[path.relative_to(incomplete).as_posix()] = folder.digest(path)
        return entries

    def _find_nonfinite(self, staged: Staged) -> str:
        """Returns a message about the first trained tensor that is not finite on any rank; "" if all are."""
        mine = next((key for key, leaf in leaves(staged.sharded) if key in staged.trained and not _finite(leaf)), None)
        mine = mine or next((name for part in staged.own_files if (name := part.nonfinite())), None)
        found = [f"{key} (of rank {rank})" for rank, key in enumerate(self._gather(mine)) if key is not None]
        return (
            f"{found[0]} is not finite: not saved, because it would replace a checkpoint that is finite"
            if found
            else ""
        )

    def _commit(self, incomplete: Path, manifest: Manifest) -> Path:
        path = folder.commit(self.directory, incomplete, manifest, attempt=self.attempt)
        # The next attempt may be loading what this one would remove.
        folder.check_lease(self.directory, self.attempt)
        for old in to_remove(self._readable(), self.config.retention):
            folder.remove(old.path, self.attempt or 0)
        return path

    def _readable(self) -> list[CommittedCheckpoint]:
        found = []
        for path in folder.committed(self.directory):
            try:
                found.append(folder.read(path))
            except CheckpointError as e:
                log.warning("checkpoint %s does not count for retention: %s", path.name, e)
        return found

    def _incomplete(self, step: int) -> Path:
        return self.directory / (names.CHECKPOINT_INCOMPLETE % (step, self.attempt or 0))

    def _on_all_ranks(self, work: Callable[[], T]) -> list[T]:
        """Runs `work` on every rank. Returns all results, or raises the same error on all ranks."""
        mine: tuple[str, Any]
        try:
            mine = ("ok", work())
        except LeaseLost as e:
            mine = ("lease", str(e))
        except (OSError, CheckpointError, CheckpointException, RuntimeError) as e:
            mine = ("failed", f"rank {self.group.rank}: {error_summary(e)} ({_free_space(self.directory)})")
        every = self._gather(mine)
        for kind, error in ((k, v) for k, v in every if k != "ok"):
            raise LeaseLost(error) if kind == "lease" else CheckpointError(error)
        return [value for _, value in every]

    def _gather(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self.group.world_size
        dist.all_gather_object(out, value, group=self.group.checkpoint)
        return out


def _finite(leaf: Any) -> bool:
    tensor = leaf.flat if isinstance(leaf, FlatShard) else leaf.to_local() if isinstance(leaf, DTensor) else leaf
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
        return True
    smallest, largest = torch.aminmax(tensor.detach())  # both are NaN if one element is, and nothing is allocated
    return bool(torch.isfinite(smallest) and torch.isfinite(largest))


def _free_space(directory: Path) -> str:
    """Returns the free space of the volume: torch's own messages don't show that it was full."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError as e:
        return f"{directory}: {e.strerror}"
    return f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB free in {directory}"


def error_summary(error: BaseException) -> str:
    """Returns one line about an error, or about the first error in torch's CheckpointException."""
    root = root_error(error)
    return f"{type(root).__name__}: {root}".splitlines()[0]


def root_error(error: BaseException) -> BaseException:
    """Returns the error behind torch's CheckpointException."""
    if isinstance(error, CheckpointException):
        return next(iter(error.failures.values()))[0]
    return error
