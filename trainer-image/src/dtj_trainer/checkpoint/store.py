"""Save and load on the shared volume: staged in milliseconds, written by a thread, committed by one rename.

What the training thread waits for is one copy of this rank's share into buffers that are kept from save to save (the
default of torch's async_save makes new ones each time, and so is little faster than a plain save). The rest is done by a
thread, in write.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load

from dtj_contract import names
from dtj_trainer.checkpoint import folder, rng, shared_folder
from dtj_trainer.checkpoint.background_task import BackgroundTask
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState, assign, share_of
from dtj_trainer.checkpoint.folder import CommittedCheckpoint
from dtj_trainer.checkpoint.planner import LoadPlanner
from dtj_trainer.checkpoint.write import PRIVATE_FILE, SHARED_FILE, SaveResult, Staged, Writer, first, reason
from dtj_trainer.distributed.flat_shard import StateDict
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import CheckpointError, CheckpointInvalid, CheckpointStalled, ConfigError

Notify = Callable[[Literal["Normal", "Warning"], str, str], None]
"""Tells a person: type, reason, message of an event."""


class CheckpointStore:
    """One rank's hold on the checkpoint folder. `save`, `load` and `drain` are called by all ranks in the same order."""

    def __init__(self, directory: Path, group: Group, config: CheckpointConfig, *, attempt: int | None, notify: Notify) -> None:
        self.directory = directory
        self._group = group
        self._config = config
        self._attempt = attempt
        self._writer = Writer(directory=directory, group=group, config=config, attempt=attempt)
        self._notify = notify
        cuda = group.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda)
        )
        self._pending: BackgroundTask[SaveResult] | None = None
        self._pending_since = 0.0
        self.stall_seconds = 0.0
        """How long the last `save` kept the training thread."""
        shared_folder.check(directory, group)

    # --- save ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A save is still being written by this rank's thread."""
        return self._pending is not None and not self._pending.done()

    def save(self, step: int, contents: CheckpointState, metrics: dict[str, float]) -> None:
        """Stages this rank's share and hands it to the thread. Call only when no rank is `busy`; take the result by `poll`."""
        started = time.perf_counter()
        shared = {"step": step, "parts": contents.shared()}
        contents.broadcast_buffers(self._group)
        tree = contents.sharded()
        owner = assign(tree, self._group.world_size, contents.buffer_keys())
        staged = self._stager.stage(share_of(tree, owner, self._group.rank))
        if isinstance(staged, Future):
            raise TypeError("the stager was built to stage at once and gave a future")
        work = Staged(
            step=step,
            sharded=staged,
            trained=contents.trained_keys(tree),
            shared=shared,
            private=rng.capture(),
            metrics=metrics,
        )
        self._pending_since = time.monotonic()
        self._pending = BackgroundTask(partial(self._writer.write, work))
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
            if self.overdue:
                raise self.stalled() from None

    @property
    def overdue(self) -> bool:
        """The save in flight has been so for longer than `timeout_seconds`, by this rank's clock."""
        return self.busy and time.monotonic() - self._pending_since >= self._config.timeout_seconds

    def stalled(self) -> CheckpointStalled:
        """Reports the overdue save, and returns the error to raise."""
        message = (
            f"the volume of {self.directory} did not finish a save within {self._config.timeout_seconds:g} s: "
            "look at the volume, or raise checkpoint.timeout_seconds"
        )
        if self._group.rank == 0:  # now: a process whose thread hangs in the kernel may not get to its traceback
            self._notify("Warning", names.Reason.CHECKPOINT_FAILED, message)
        return CheckpointStalled(message)

    # --- load ----------------------------------------------------------------------------------------------------

    def load(self, contents: CheckpointState) -> CommittedCheckpoint | None:
        """The newest valid checkpoint, read into `contents`; None if there is none.

        A torn one is reported, put aside and the one before it taken. Raises ConfigError if what is in a valid one does
        not fit the model, CheckpointError if the volume can't be read.
        """
        if self._group.rank == 0 and self.directory.is_dir():
            folder.sweep(self.directory, 1 if self._attempt is None else self._attempt)  # no agent: all are of runs before
        checkpoint = self.newest()
        if checkpoint is None:
            return None
        shared = _load_file(checkpoint.path / SHARED_FILE)
        contents.forget_gradients()
        tree, reader = contents.sharded(), FileSystemReader(checkpoint.path)
        fresh = contents.take_out_fresh(tree, reader.read_metadata().state_dict_metadata.keys())
        try:
            load(tree, storage_reader=reader, planner=LoadPlanner(), process_group=self._group.checkpoint)
        except (CheckpointException, RuntimeError, ValueError) as e:
            if isinstance(first(e), OSError):
                raise CheckpointError(f"{checkpoint.path} could not be read: {reason(e)}") from e
            raise ConfigError(
                f"{checkpoint.path} does not fit this model and optimizer ({reason(e)}): "
                "set them back, or start in a new checkpoint folder"
            ) from e
        for optimizer, state in fresh.items():
            tree[optimizer]["state"].update(state)
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

    def newest(self) -> CommittedCheckpoint | None:
        """The newest checkpoint whose files all have their checksums; the ranks share the reading.

        Raises CheckpointError if the volume fails: a restart may read what is whole, a fresh start would throw it away.
        """
        # Looked for anew each time: what an older attempt's retention removed under our hands is no reason to begin at step 0.
        while paths := self._group.from_first(folder.committed(self.directory)):
            path, checkpoint, problem = paths[0], None, ""
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
                folder.quarantine(path, self._attempt or 0)
        return None

    def close(self) -> None:
        """Frees the staging buffers. A save in flight is left half-written, which is harmless, unless it ends soon."""
        if self._pending is not None:
            self._pending.join()
        if not self.busy:
            self._stager.close()


def _load_file(path: Path) -> StateDict:
    tree: StateDict = torch.load(path, map_location="cpu", weights_only=True)
    return tree
