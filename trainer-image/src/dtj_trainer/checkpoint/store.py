"""Save and load on the shared volume: staged in milliseconds, written by a thread, committed by one rename.

What the training thread waits for is one copy of this rank's share into buffers that are kept from save to save (the
default of torch's async_save makes new ones each time, and so is little faster than a plain save). A thread then runs
torch.distributed.checkpoint over a gloo group of its own, hashes this rank's files, and rank 0 commits.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dtj_agent import names
from dtj_trainer.checkpoint import folder, rng
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import Contents, Tree, assign, share_of
from dtj_trainer.checkpoint.folder import Checkpoint, FileEntry, Manifest
from dtj_trainer.checkpoint.retention import to_remove
from dtj_trainer.checkpoint.task import Task
from dtj_trainer.comm.group import Group
from dtj_trainer.errors import CheckpointError, CheckpointInvalid, CheckpointStalled, ConfigError, LeaseLost

log = logging.getLogger(__name__)
SHARED_FILE = "shared.pt"
PRIVATE_FILE = "rank-%05d.pt"


T = TypeVar("T")
Outcome = Literal["committed", "failed", "lease-lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveResult:
    """How one save ended; the same on every rank."""

    step: int
    outcome: Outcome
    path: Path | None = None
    time: float = 0.0
    """Unix seconds of the commit."""
    message: str = ""
    write_seconds: float = 0.0
    """From hand-over to commit, beside the training."""


Notify = Callable[[Literal["Normal", "Warning"], str, str], None]
"""Tells a person: type, reason, message of an event."""


class CheckpointStore:
    """One rank's hold on the checkpoint folder. `save`, `load` and `drain` are called by all ranks in the same order."""

    def __init__(self, directory: Path, group: Group, config: CheckpointConfig, *, attempt: int | None, notify: Notify) -> None:
        self.directory = directory
        self._group = group
        self._config = config
        self._attempt = attempt
        self._notify = notify
        cuda = group.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda)
        )
        self._pending: Task[SaveResult] | None = None
        self._pending_since = 0.0
        self.stall_seconds = 0.0
        """How long the last `save` kept the training thread."""

    # --- save ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A save is still being written by this rank's thread."""
        return self._pending is not None and not self._pending.done()

    def save(self, step: int, contents: Contents, metrics: dict[str, float]) -> None:
        """Stages this rank's share and hands it to the thread. Call only when no rank is `busy`; take the result by `poll`."""
        started = time.perf_counter()
        tree = contents.sharded()
        owner = assign(tree, self._group.world_size, contents.buffer_keys())
        staged = self._stager.stage(share_of(tree, owner, self._group.rank))
        if isinstance(staged, Future):
            raise TypeError("the stager was built to stage at once and gave a future")
        shared = {"step": step, "parts": contents.shared()}
        self._pending_since = time.monotonic()
        self._pending = Task(partial(self._write, step, staged, shared, rng.capture(), metrics))
        if not self._config.asynchronous:
            self._wait()
        self.stall_seconds = time.perf_counter() - started

    def poll(self) -> SaveResult | None:
        """The result of the save that has ended since the last call, if one has."""
        if self._pending is None or not self._pending.done():
            return None
        done, self._pending = self._pending, None
        return done.result()

    def drain(self) -> SaveResult | None:
        """Waits until the save in flight has ended, at most `timeout_seconds` since it began. Raises CheckpointStalled."""
        if self._pending is not None:
            self._wait()
        return self.poll()

    def _wait(self) -> None:
        if self._pending is None:
            return
        left = self._config.timeout_seconds - (time.monotonic() - self._pending_since)
        try:
            self._pending.wait(max(left, 0.0))
        except FutureTimeoutError:
            self.check_deadline()

    def check_deadline(self) -> None:
        """Raises CheckpointStalled if the save in flight has been so for longer than `timeout_seconds`."""
        if self.busy and time.monotonic() - self._pending_since >= self._config.timeout_seconds:
            raise CheckpointStalled(
                f"the volume of {self.directory} did not finish a save within {self._config.timeout_seconds:g} s: "
                "look at the volume, or raise checkpoint.timeout_seconds"
            )

    def _write(self, step: int, staged: Tree, shared: Tree, private: Tree, metrics: dict[str, float]) -> SaveResult:
        started = time.monotonic()
        for left in range(self._config.retries, -1, -1):
            result = self._write_once(step, staged, shared, private, metrics, started)
            if result.outcome != "committed" and self._group.rank == 0:
                shutil.rmtree(self._incomplete(step), ignore_errors=True)  # on a full volume this is what makes room
            if result.outcome != "failed" or left == 0:
                return result
            log.warning("checkpoint of step %d: %s; trying again, %d left", step, result.message, left)
            time.sleep(self._config.retry_seconds)  # all ranks got the same outcome, so all of them wait here
        raise AssertionError("unreachable: the loop returns")

    def _write_once(
        self, step: int, staged: Tree, shared: Tree, private: Tree, metrics: dict[str, float], started: float
    ) -> SaveResult:
        rank, incomplete = self._group.rank, self._incomplete(step)

        def make_room() -> None:
            if rank == 0:
                folder.check_lease(self.directory, self._attempt)  # the early word; the one that counts is at the commit
                shutil.rmtree(incomplete, ignore_errors=True)
                incomplete.mkdir(parents=True)

        def write() -> dict[str, FileEntry]:
            save(staged, storage_writer=FileSystemWriter(incomplete), process_group=self._group.checkpoint)
            _save_file(private, incomplete / (PRIVATE_FILE % rank))
            mine = [f.name for f in incomplete.glob(f"__{rank}_*")] + [PRIVATE_FILE % rank]
            if rank == 0:
                _save_file(shared, incomplete / SHARED_FILE)
                mine += [SHARED_FILE, ".metadata"]
            return {name: folder.digest(incomplete / name) for name in mine}

        try:
            self._together(make_room)
            files = {name: entry for part in self._together(write) for name, entry in part.items()}
            manifest = Manifest(
                step=step,
                attempt=self._attempt or 0,
                world_size=self._group.world_size,
                time=time.time(),
                files=files,
                metrics=metrics,
            )
            path = self._together(lambda: self._commit(incomplete, manifest) if rank == 0 else None)[0]
        except LeaseLost as e:
            return SaveResult(step=step, outcome="lease-lost", message=str(e))
        except CheckpointError as e:
            return SaveResult(step=step, outcome="failed", message=str(e))
        took = time.monotonic() - started
        return SaveResult(step=step, outcome="committed", path=path, time=manifest.time, write_seconds=took)

    def _commit(self, incomplete: Path, manifest: Manifest) -> Path:
        path = folder.commit(self.directory, incomplete, manifest, attempt=self._attempt)
        for old in to_remove(self._readable(), self._config.retention):
            folder.remove(old.path, self._attempt or 0)
        return path

    def _readable(self) -> list[Checkpoint]:
        found = []
        for path in folder.committed(self.directory):
            try:
                found.append(folder.read(path))
            except CheckpointError as e:
                log.warning("checkpoint %s is not counted: %s", path.name, e)
        return found

    def _incomplete(self, step: int) -> Path:
        return self.directory / (names.CHECKPOINT_INCOMPLETE % (step, self._attempt or 0))

    def _together(self, work: Callable[[], T]) -> list[T]:
        """Runs `work` on every rank and gives all results, or raises the same error on all of them."""
        mine: tuple[str, Any]
        try:
            mine = ("ok", work())
        except LeaseLost as e:
            mine = ("lease", str(e))
        except (OSError, CheckpointError, CheckpointException, RuntimeError) as e:
            mine = ("failed", f"rank {self._group.rank}: {_reason(e)} ({_free(self.directory)})")
        every = self._gather(mine)
        for kind, error in ((k, v) for k, v in every if k != "ok"):
            raise LeaseLost(error) if kind == "lease" else CheckpointError(error)
        return [value for _, value in every]

    def _gather(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(out, value, group=self._group.checkpoint)
        return out

    # --- load ----------------------------------------------------------------------------------------------------

    def load(self, contents: Contents) -> Checkpoint | None:
        """The newest valid checkpoint, read into `contents`; None if there is none.

        A torn one is reported, put aside and the one before it taken. Raises ConfigError if what is in a valid one does
        not fit the model, CheckpointError if the volume can't be read.
        """
        if self._group.rank == 0 and self.directory.is_dir():
            folder.sweep(self.directory, self._attempt or 0)
        checkpoint = self.newest()
        if checkpoint is None:
            return None
        shared = _load_file(checkpoint.path / SHARED_FILE)
        contents.forget_gradients()
        tree = contents.sharded()
        try:
            load(tree, storage_reader=FileSystemReader(checkpoint.path), process_group=self._group.checkpoint)
        except (CheckpointException, RuntimeError, ValueError) as e:
            if isinstance(_first(e), OSError):
                raise CheckpointError(f"{checkpoint.path} could not be read: {_reason(e)}") from e
            raise ConfigError(
                f"{checkpoint.path} does not fit this model and optimizer ({_reason(e)}): "
                "set them back, or start in a new checkpoint folder"
            ) from e
        contents.load_sharded(tree)
        contents.load_shared(shared["parts"])
        if checkpoint.manifest.world_size == self._group.world_size:
            rng.restore(_load_file(checkpoint.path / (PRIVATE_FILE % self._group.rank)))
        else:
            rng.seed_all(checkpoint.step * 1_000_003 + self._group.rank)
            if self._group.rank == 0:
                self._notify(
                    "Normal",
                    names.Reason.WORLD_RESIZED,
                    f"{checkpoint.path.name} was made by {checkpoint.manifest.world_size} ranks, "
                    f"and {self._group.world_size} read it",
                )
        return checkpoint

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint whose files all have their checksums; the ranks share the reading.

        Raises CheckpointError if the volume fails: a restart may read what is whole, a fresh start would throw it away.
        """
        for path in self._group.from_first(folder.committed(self.directory)):
            checkpoint, problem = None, ""
            try:
                checkpoint = folder.read(path)
                files = sorted(checkpoint.manifest.files)
                folder.verify(checkpoint, files[self._group.rank :: self._group.world_size])
            except CheckpointInvalid as e:
                problem = str(e)
            problems = [p for p in self._group.all_objects(problem) if p]
            if not problems and checkpoint is not None:
                return checkpoint
            if self._group.rank == 0:
                self._notify("Warning", names.Reason.CHECKPOINT_TORN, f"{path.name} skipped: {problems[0]}")
                folder.set_aside(path, self._attempt or 0)
        return None

    def close(self) -> None:
        """Frees the staging buffers. A save in flight is left half-written, which is harmless, unless it ends soon."""
        if self._pending is not None:
            self._pending.join()
        if not self.busy:
            self._stager.close()


def _save_file(tree: Tree, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(tree, file)
        file.flush()
        os.fsync(file.fileno())


def _load_file(path: Path) -> Tree:
    tree: Tree = torch.load(path, map_location="cpu", weights_only=True)
    return tree


def _free(directory: Path) -> str:
    """What the volume has left: torch's own messages don't say when it was full."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError as e:
        return f"{directory}: {e.strerror}"
    return f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB free in {directory}"


def _reason(error: BaseException) -> str:
    """One line; of torch's CheckpointException, which holds one error a rank, the first."""
    first = _first(error)
    return f"{type(first).__name__}: {first}".splitlines()[0]


def _first(error: BaseException) -> BaseException:
    if isinstance(error, CheckpointException):
        return next(iter(error.failures.values()))[0]
    return error
