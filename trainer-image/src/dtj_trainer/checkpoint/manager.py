"""When a run is saved, and what follows from how a save went."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from dtj_contract import names
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState
from dtj_trainer.checkpoint.folder import CommittedCheckpoint
from dtj_trainer.checkpoint.store import CheckpointStore
from dtj_trainer.checkpoint.write import SaveResult
from dtj_trainer.errors import CheckpointError, LeaseLost
from dtj_trainer.telemetry.progress import Progress

Notify = Callable[[Literal["Normal", "Warning"], str, str], None]


class CheckpointManager:
    """The saves of one run, one at a time; without a store nothing is saved."""

    def __init__(
        self,
        store: CheckpointStore | None,
        config: CheckpointConfig,
        parts: Mapping[str, object],
        *,
        every: int,
        first_rank: bool,
        progress: Progress,
        notify: Notify,
    ) -> None:
        self.store = store
        self.step = -1
        """The newest that is on the volume."""
        self._config, self._parts, self._every = config, parts, every
        self._first_rank, self._progress, self._notify = first_rank, progress, notify
        self._stall = 0.0
        self._failures = 0
        self._told_slow = False
        self._told_metric = False

    @property
    def overdue(self) -> bool:
        """This rank has written for longer than a save may take, and the training is to end for it."""
        return bool(self.store and self._config.max_failures and self.store.overdue)

    @property
    def busy(self) -> bool:
        """This rank still writes."""
        return bool(self.store and self.store.busy)

    def due(self, step: int) -> bool:
        """A save is due after this step."""
        return bool(self.store and step % self._every == 0)

    def load(self) -> CommittedCheckpoint | None:
        """The newest valid checkpoint, loaded into the parts."""
        self.settle()
        if self.store is None:
            return None
        contents = CheckpointState(self._parts)
        contents.shared()  # what could never be loaded is refused before the first step, and not at the first save
        found = self.store.load(contents)
        if found:
            self.step = found.step
        return found

    def poll(self) -> None:
        """Takes the result of a save that has ended in the meantime."""
        if self.store and (result := self.store.poll()):
            self._take(result)

    def settle(self) -> None:
        """Waits for the save in flight and takes its result."""
        if self.store and (result := self.store.drain()):
            self._take(result)

    def begin(self, step: int, metrics: Mapping[str, float]) -> None:
        """Waits for the save before this one, then begins one; does nothing if this step is on the volume already."""
        self.settle()
        if self.store is None or self.step == step:
            return
        self._told_slow = False
        self._check_metric(metrics)
        self._progress.phase("saving", step=step)
        self.store.save(step, CheckpointState(self._parts), {k: v for k, v in metrics.items() if math.isfinite(v)})
        self._stall += self.store.stall_seconds

    def begin_unless(self, busy: bool, step: int, metrics: Mapping[str, float], *, overdue: bool) -> None:
        """The same, or without waiting none at all: said once, until a save has come through.

        `busy`, `overdue`: any rank is, by all ranks' agreement. Raises CheckpointStalled on all of them if one is overdue.
        """
        if self.store and overdue:
            raise self.store.stalled()
        if not busy:
            self.begin(step, metrics)
        elif self.store:
            if self._first_rank and not self._told_slow:
                message = f"step {step} is not saved, and none until the save before it has been written"
                self._notify("Warning", names.Reason.CHECKPOINT_SLOW, message)
            self._told_slow = True

    def finish(self, step: int, metrics: Mapping[str, float]) -> None:
        """At the end and before leaving: what is in flight, then this step, and wait for both."""
        self.begin(step, metrics)
        self.settle()
        if self.store and self.step != step:
            raise CheckpointError(f"step {step} could not be saved to {self.store.directory}; last saved: {self.step}")

    def take_stall(self) -> float:
        """Seconds that saves have kept the training thread since the last call."""
        taken, self._stall = self._stall, 0.0
        return taken

    def close(self) -> None:
        """After the last save."""
        if self.store:
            self.store.close()

    def _take(self, result: SaveResult) -> None:
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
        """Reports once that `keep_best` looks at a metric that this save has not: it may be misspelt."""
        wanted = self._config.retention
        if wanted.keep_best and wanted.metric not in metrics and not self._told_metric and self._first_rank:
            self._told_metric = True
            message = f"checkpoint.retention.metric={wanted.metric!r} is not among {sorted(metrics)}: this one can't be the best"
            self._notify("Warning", names.Reason.CHECKPOINT_METRIC_MISSING, message)

    def _failed(self, message: str) -> None:
        self._failures += 1
        if self._first_rank:
            self._notify("Warning", names.Reason.CHECKPOINT_FAILED, message)
        limit = self._config.max_failures
        if limit and self._failures >= limit:
            raise CheckpointError(f"{self._failures} checkpoints in a row were not written, the last: {message}")
