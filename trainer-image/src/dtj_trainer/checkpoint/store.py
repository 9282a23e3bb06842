"""Saves and loads checkpoints: staged in milliseconds, written by a thread, committed by one rename.

The training thread waits only for one copy of this rank's share into buffers that are kept from
save to save. (torch's async_save allocates new buffers each time by default, and so is little
faster than a plain save.) A thread does the rest, in write.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, cast

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load

from dtj_contract import names
from dtj_trainer.checkpoint import folder, rng, shared_folder_check
from dtj_trainer.checkpoint.background_task import BackgroundTask
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import RANKS, CheckpointState, assign_writers, select_share
from dtj_trainer.checkpoint.folder import CommittedCheckpoint, Manifest
from dtj_trainer.checkpoint.planner import LoadPlanner
from dtj_trainer.checkpoint.quarantine import quarantine, sweep
from dtj_trainer.checkpoint.write import (
    PRIVATE_FILE,
    SHARED_FILE,
    SaveResult,
    Staged,
    Writer,
    error_summary,
    root_error,
)
from dtj_trainer.distributed.flat_shard import StateDict
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import CheckpointError, CheckpointInvalid, CheckpointStalled, ConfigError, TrainerError

T = TypeVar("T")
Notify = Callable[[Literal["Normal", "Warning"], str, str], None]
"""Reports an event to a person: type, reason, message."""


class CheckpointStore:
    """One rank's access to the checkpoint folder.

    All ranks call `save`, `load` and `drain` in the same order.
    """

    def __init__(
        self, directory: Path, group: Group, config: CheckpointConfig, *, attempt: int | None, notify: Notify
    ) -> None:
        self.directory = directory
        self._group = group
        self._config = config
        self._attempt = attempt
        self._writer = Writer(directory=directory, group=group, config=config, attempt=attempt)
        self._notify = notify
        cuda = group.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
            )
        )
        self._pending: BackgroundTask[SaveResult] | None = None
        self._pending_since = 0.0
        self.stall_seconds = 0.0
        """How long the last `save` blocked the training thread."""
        shared_folder_check.check(directory, group)

    # --- save ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether this rank's thread still writes a save."""
        return self._pending is not None and not self._pending.done()

    def save(self, step: int, state: CheckpointState, metrics: dict[str, float]) -> None:
        """Stages this rank's share and passes it to the thread.

        Call it only when no rank is `busy`; `poll` has the result.
        """
        started = time.perf_counter()
        shared = {"step": step, "parts": state.shared()}
        state.broadcast_buffers(self._group)
        tree = state.sharded()
        owner = assign_writers(tree, self._group.world_size, state.buffer_keys())
        share = select_share(tree, owner, self._group.rank) | state.of_rank(self._group.rank)
        staged = self._stager.stage(share)
        if isinstance(staged, Future):
            raise TypeError("the stager was built to stage at once and returned a future")
        work = Staged(
            step=step,
            sharded=staged,
            trained=state.trained_keys(tree),
            own_files=state.own_files,
            shared=shared,
            private=rng.capture(),
            metrics=metrics,
        )
        self._pending_since = time.monotonic()
        self._pending = BackgroundTask(partial(self._writer.write, work))
        if not self._config.asynchronous or state.own_files:
            self._wait()
        self.stall_seconds = time.perf_counter() - started

    def poll(self) -> SaveResult | None:
        """Returns the result of a save that has ended since the last call, None if there is none."""
        if self._pending is None or not self._pending.done():
            return None
        done, self._pending = self._pending, None
        return done.result()

    def drain(self) -> SaveResult | None:
        """Waits for the save in flight, at most `timeout_seconds` since it began.

        Raises CheckpointStalled.
        """
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
        """Whether the save in flight has taken longer than `timeout_seconds`, by this rank's clock."""
        return self.busy and time.monotonic() - self._pending_since >= self._config.timeout_seconds

    def stalled(self) -> CheckpointStalled:
        """Reports the overdue save, and returns the error to raise."""
        message = (
            f"the volume of {self.directory} did not finish a save within {self._config.timeout_seconds:g} s: "
            "look at the volume, or raise checkpoint.timeout_seconds"
        )
        # Reported now, because a process whose thread hangs in the kernel may not get to its
        # traceback.
        if self._group.rank == 0:
            self._notify("Warning", names.Reason.CHECKPOINT_FAILED, message)
        return CheckpointStalled(message)

    # --- load ----------------------------------------------------------------------------------------------------

    def load(self, state: CheckpointState) -> CommittedCheckpoint | None:
        """Loads the newest valid checkpoint into `state`. Returns it, None if there is none.

        A torn checkpoint is reported and quarantined, and the one before it is loaded. Raises
        ConfigError if the contents of a valid one do not fit the model, CheckpointError if the
        volume can't be read.
        """
        self.clean()
        checkpoint = self.newest() or self._named()
        if checkpoint is None:
            return None
        reader = FileSystemReader(checkpoint.path)
        same_world = checkpoint.manifest.world_size == self._group.world_size
        private = checkpoint.path / (PRIVATE_FILE % self._group.rank)
        shared, known, random = self._on_all(
            lambda: (
                _load_file(checkpoint.path / SHARED_FILE),
                reader.read_metadata().state_dict_metadata.keys(),
                _load_file(private) if same_world else {},
            )
        )
        state.clear_gradients()
        tree = state.sharded()
        unsaved = state.pop_unsaved(tree, known)
        saved_by = checkpoint.manifest.world_size
        rows = state.rows_to_load(known, saved_by, self._group)
        for rank, row in rows.items():
            for part, tensors in row.items():
                tree.setdefault(RANKS, {}).setdefault(part, {})[str(rank)] = tensors
        try:
            load(tree, storage_reader=reader, planner=LoadPlanner(), process_group=self._group.checkpoint)
        except (CheckpointException, RuntimeError, ValueError) as e:
            if isinstance(root_error(e), OSError):
                raise CheckpointError(f"{checkpoint.path} could not be read: {error_summary(e)}") from e
            raise ConfigError(
                f"{checkpoint.path} does not fit this model and optimizer ({error_summary(e)}): "
                "set them back, or start in a new checkpoint folder"
            ) from e
        for optimizer, zeros in unsaved.items():
            tree[optimizer]["state"].update(zeros)
        state.load_sharded(tree)
        for own in state.own_files:
            own.load_files(checkpoint.path)
        state.load_rows(rows, saved_by, self._group)
        self._on_all(lambda: state.load_shared(shared["parts"]))
        if same_world:
            rng.restore(random)
        else:
            rng.seed_resized(checkpoint.step, self._group.rank)
            if self._group.rank == 0:
                self._notify(
                    "Normal",
                    names.Reason.WORLD_RESIZED,
                    f"{checkpoint.path.name} was saved by {checkpoint.manifest.world_size} ranks, "
                    f"and {self._group.world_size} load it",
                )
        return checkpoint

    def clean(self) -> None:
        """Removes what killed writers have left."""
        # Without an agent all leftovers are of earlier runs.
        attempt = 1 if self._attempt is None else self._attempt
        self._on_first(lambda: sweep(self.directory, attempt) if self.directory.is_dir() else None)

    def newest_manifest(self) -> Manifest | None:
        """Returns the newest checkpoint's manifest, as rank 0 reads it, without reading the files.

        Raises CheckpointError on all ranks if the volume fails, ConfigError for a manifest of a newer
        version.
        """

        def look() -> Manifest | None:
            for path in folder.committed(self.directory):
                with contextlib.suppress(CheckpointInvalid):
                    return folder.read(path).manifest
            return None

        return self._on_first(look)

    def newest(self) -> CommittedCheckpoint | None:
        """Returns the newest checkpoint whose files all have their checksums. The ranks share the reading.

        Raises CheckpointError if the volume fails: a restart may be able to read the checkpoint, a
        fresh start would lose it.
        """
        # Listed again each time, so that a checkpoint that an older attempt's retention removes
        # meanwhile does not make the run begin at step 0.
        while paths := self._on_first(lambda: folder.committed(self.directory)):
            path = paths[0]
            checkpoint, problem = self._on_all(partial(self._verify, path))
            problems = [p for p in self._group.all_objects(problem) if p]
            if not problems and checkpoint is not None:
                return checkpoint
            if self._group.rank == 0:
                self._notify("Warning", names.Reason.CHECKPOINT_TORN, f"{path.name} skipped: {problems[0]}")
            self._on_first(partial(quarantine, path, self._attempt or 0))
        return None

    def _named(self) -> CommittedCheckpoint | None:
        """Returns the verified checkpoint of another run that `resume_from` names, if it does; a collective."""
        given = self._config.resume_from
        if given is None:
            return None

        def look() -> Path:
            try:
                return folder.find(given).path
            except CheckpointInvalid as e:
                raise ConfigError(f"checkpoint.resume_from={given}: {e}") from e

        path = self._on_first(look)
        checkpoint, problem = self._on_all(partial(self._verify, path))
        problems = [p for p in self._group.all_objects(problem) if p]
        if problems or checkpoint is None:
            raise CheckpointInvalid(f"checkpoint.resume_from={given}: {problems[0]}: write another checkpoint")
        return checkpoint

    def _verify(self, path: Path) -> tuple[CommittedCheckpoint | None, str]:
        """Returns the checkpoint, and why this rank's share of its files is torn."""
        try:
            checkpoint = folder.read(path)
            files = sorted(checkpoint.manifest.files)
            folder.verify(checkpoint, files[self._group.rank :: self._group.world_size])
        except CheckpointInvalid as e:
            return None, str(e)
        return checkpoint, ""

    def _on_all(self, look: Callable[[], T]) -> T:
        """Returns this rank's result, once no rank's look has failed; a collective.

        Raises this rank's error, or CheckpointError if another rank has one: no rank continues alone.
        """
        found, error = self._try(look)
        problems = self._group.all_objects("" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, problem in enumerate(problems):
            if problem:
                raise CheckpointError(f"rank {rank} could not load from {self.directory}: {problem}")
        return cast("T", found)

    def _on_first(self, look: Callable[[], T]) -> T:
        """Returns rank 0's result, or raises its error on all ranks; a collective."""
        found, error = self._try(look) if self._group.rank == 0 else (None, None)
        text = f"{type(error).__name__}: {error}"
        sent = error if error is None or isinstance(error, TrainerError) else CheckpointError(text)
        found, sent = self._group.from_first((found, sent))
        if sent is not None:
            raise error or sent
        return cast("T", found)

    def _try(self, look: Callable[[], T]) -> tuple[T | None, Exception | None]:
        try:
            return look(), None
        except OSError as e:
            file = Path(e.filename or self.directory)
            return None, CheckpointError(f"{file} can't be read now ({e.strerror or e}): look at the volume")
        except Exception as e:  # noqa: BLE001 - the other ranks wait for this rank's answer
            return None, e

    def close(self) -> None:
        """Frees the staging buffers.

        A save in flight that does not end soon stays incomplete, which is harmless.
        """
        if self._pending is not None:
            self._pending.join()
        if not self.busy:
            self._stager.close()


def _load_file(path: Path) -> StateDict:
    tree: StateDict = torch.load(path, map_location="cpu", weights_only=True)
    return tree
