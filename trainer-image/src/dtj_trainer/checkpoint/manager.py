"""Decides when a run is saved, and what follows from the result of a save."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dtj_contract import names
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState
from dtj_trainer.checkpoint.folder import CommittedCheckpoint
from dtj_trainer.checkpoint.store import CheckpointStore, Notify
from dtj_trainer.checkpoint.write import SaveResult
from dtj_trainer.errors import CheckpointError, LeaseLost
from dtj_trainer.snapshots.choice import Volume
from dtj_trainer.telemetry.progress import ProgressReporter


@runtime_checkable
class PreparesSaves(Protocol):
    """A part that all ranks prepare together before each save."""

    def before_save(self) -> None:
        """Brings the parts into the state to save; a collective."""


class CheckpointManager:
    """Saves a run, one checkpoint at a time. Without a store nothing is saved."""

    def __init__(
        self,
        store: CheckpointStore | None,
        config: CheckpointConfig,
        parts: Mapping[str, object],
        *,
        every: int,
        first_rank: bool,
        progress: ProgressReporter,
        notify: Notify,
    ) -> None:
        self.store = store
        self.step = -1
        """Step of the newest checkpoint on the volume."""
        self._config, self._parts, self._every = config, parts, every
        self._first_rank, self._progress, self._notify = first_rank, progress, notify
        self._preparing = [part for part in parts.values() if isinstance(part, PreparesSaves)]
        self._stall = 0.0
        self._failures = 0
        self._warned_slow = False
        self._warned_metric = False

    @property
    def overdue(self) -> bool:
        """Whether this rank has written for longer than a save may take, which is to end the training."""
        return bool(self.store and self._config.max_failures and self.store.overdue)

    @property
    def busy(self) -> bool:
        """Whether this rank still writes."""
        return bool(self.store and self.store.busy)

    def due(self, step: int) -> bool:
        """Returns whether a save is due after this step."""
        return bool(self.store and step % self._every == 0)

    def load(self) -> CommittedCheckpoint | None:
        """Loads the newest valid checkpoint into the parts, and returns it; None if there is none."""
        self.settle()
        if self.store is None:
            return None
        state = CheckpointState(self._parts)
        # State that could never be loaded is rejected before the first step, and not at the first
        # save.
        state.shared()
        found = self.store.load(state)
        if found and found.path.parent == self.store.directory:  # and not another run's
            self.step = found.step
        return found

    def newest(self, verify: bool) -> Volume:
        """Returns what the volume has, to compare with snapshots. `verify`: read all of it."""
        if self.store is None:
            return Volume()
        checkpoint = self.store.newest() if verify else None
        manifest = checkpoint.manifest if checkpoint else None if verify else self.store.newest_manifest()
        self.step = manifest.step if manifest else -1
        return Volume(step=manifest.step, attempt=manifest.attempt) if manifest else Volume()

    def keep(self) -> None:
        """Removes what killed writers have left: the run continues from a snapshot, and `load` is not called."""
        if self.store:
            self.store.clean()

    def poll(self) -> None:
        """Handles the result of a save that has ended since the last call."""
        if self.store and (result := self.store.poll()):
            self._handle(result)

    def settle(self) -> None:
        """Waits for the save in flight and handles its result."""
        if self.store and (result := self.store.drain()):
            self._handle(result)

    def begin(self, step: int, metrics: Mapping[str, float]) -> None:
        """Waits for the previous save, then begins one.

        Does nothing if this step is on the volume already.
        """
        if self.store is None:
            return
        with self._progress.pause("saving"):
            self.settle()
            if self.step == step:
                return
            self._warned_slow = False
            self._check_metric(metrics)
            for part in self._preparing:
                part.before_save()
            self.store.save(step, CheckpointState(self._parts), {k: v for k, v in metrics.items() if math.isfinite(v)})
            self._stall += self.store.stall_seconds

    def begin_unless(self, busy: bool, step: int, metrics: Mapping[str, float], *, overdue: bool) -> None:
        """Begins a save as `begin` does, but skips it if the previous one is still being written.

        Warns once until a save begins. `busy`, `overdue`: whether any rank is, as all ranks have
        agreed. Raises CheckpointStalled on all of them if one is overdue.
        """
        if self.store and overdue:
            raise self.store.stalled()
        if not busy:
            self.begin(step, metrics)
        elif self.store:
            if self._first_rank and not self._warned_slow:
                message = f"step {step} is not saved: no step is, until the previous save has been written"
                self._notify("Warning", names.Reason.CHECKPOINT_SLOW, message)
            self._warned_slow = True

    def finish(self, step: int, metrics: Mapping[str, float]) -> None:
        """Saves this step after the save in flight, and waits for both: at the end, and before a stop."""
        if self.store is None:
            return
        self.begin(step, metrics)
        with self._progress.pause("saving"):
            self.settle()
        if self.step != step:
            raise CheckpointError(f"step {step} could not be saved to {self.store.directory}; last saved: {self.step}")

    def pop_stall_seconds(self) -> float:
        """Returns the seconds that saves have blocked the training thread since the last call."""
        taken, self._stall = self._stall, 0.0
        return taken

    def close(self) -> None:
        """Closes the store, after the last save."""
        if self.store:
            self.store.close()

    def _handle(self, result: SaveResult) -> None:
        if result.outcome == "committed" and result.path:
            self.step, self._failures = result.step, 0
            self._progress.checkpoint(result.step, result.path, result.time)
        elif result.outcome == "lease-lost":
            if self._first_rank:
                self._notify("Warning", names.Reason.LEASE_LOST, result.message)
            raise LeaseLost(result.message)
        else:
            self._failed(f"step {result.step}: {result.message}")

    def _check_metric(self, metrics: Mapping[str, float]) -> None:
        """Warns once if this save lacks the metric of `keep_best`: it may be misspelt."""
        wanted = self._config.retention
        if wanted.keep_best and wanted.metric not in metrics and not self._warned_metric and self._first_rank:
            self._warned_metric = True
            message = (
                f"checkpoint.retention.metric={wanted.metric!r} is not among {sorted(metrics)}: "
                "this checkpoint can't be the best"
            )
            self._notify("Warning", names.Reason.CHECKPOINT_METRIC_MISSING, message)

    def _failed(self, message: str) -> None:
        self._failures += 1
        if self._first_rank:
            self._notify("Warning", names.Reason.CHECKPOINT_FAILED, message)
        limit = self._config.max_failures
        if limit and self._failures >= limit:
            raise CheckpointError(f"{self._failures} checkpoints in a row were not written, the last: {message}")
