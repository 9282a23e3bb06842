"""Three lines for your own training loop: what is saved, the steps, the report.

    state = State(model=model, optimizer=optimizer, scheduler=scheduler)    # 1: what a checkpoint holds
    for step in state.steps(1000):                                          # 2: resumes, saves, stops on SIGTERM
        loss = ...
        state.report(loss=loss, samples=64)                                 # 3: progress, to the agent and the log

Without a checkpoint folder nothing is saved; without an agent nothing is reported to one. The loop
is the same.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from dtj_contract import names
from dtj_trainer.checkpoint.config import DEFAULT_EVERY_STEPS, CheckpointConfig
from dtj_trainer.checkpoint.manager import CheckpointManager
from dtj_trainer.checkpoint.store import CheckpointStore
from dtj_trainer.distributed import config_check, stop_signal
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.stop_consensus import RankStatus, StopConsensus
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError, NonFiniteLoss, SinkError, Stopped
from dtj_trainer.snapshots.memory import MemorySnapshots
from dtj_trainer.telemetry.meter import worker_age
from dtj_trainer.telemetry.progress import RESUMED_FROM, ProgressReporter, ResumeSource
from dtj_trainer.telemetry.record import Console, JsonLines, Record, Sink
from dtj_trainer.telemetry.sinks import Background

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class StateConfig:
    """How a State logs, saves and stops; the defaults suit a job under our agent."""

    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log_every_steps: int = 10
    agree_seconds: float = 0.5
    """About how often the ranks exchange whether one of them got a SIGTERM."""
    collective_timeout_seconds: float = 600.0
    max_nonfinite: int = 5
    """This many logged losses in a row that are NaN or infinite, on any rank, end the training with
    NonFiniteLoss, and so does one at the end of the run; 0: continue."""

    def __post_init__(self) -> None:
        if self.log_every_steps < 1:
            raise ConfigError(f"log_every_steps={self.log_every_steps}: write 1 or more")
        if self.max_nonfinite < 0:
            raise ConfigError(f"max_nonfinite={self.max_nonfinite}: write a count of logged losses, or 0 for no limit")
        if self.agree_seconds < 0 or self.collective_timeout_seconds <= 0:
            raise ConfigError("agree_seconds must be 0 or more, collective_timeout_seconds above 0")


class State:
    """Holds the objects of a run by name, and saves and loads them.

    Objects are modules, optimizers, and anything with state_dict and load_state_dict.
    """

    def __init__(self, config: StateConfig | None = None, /, **objects: object) -> None:
        """Joins the group if the script has not; `attach` takes a given group instead."""
        env = WorkerEnv.read()
        config = config or StateConfig()
        group = Group.open(env, timeout=timedelta(seconds=config.collective_timeout_seconds))
        self._attach(config, env, group, objects)

    @classmethod
    def attach(cls, config: StateConfig, env: WorkerEnv, group: Group, /, **objects: object) -> State:
        """Returns a State in a group that is open already."""
        self = cls.__new__(cls)
        self._attach(config, env, group, objects)
        return self

    def _attach(self, config: StateConfig, env: WorkerEnv, group: Group, objects: dict[str, object]) -> None:
        facts = config_check.startup_facts(config, group, env, config.checkpoint)
        config_check.check(facts | {"state objects": ", ".join(sorted(objects))}, group)
        self.step = 0
        """Optimizer steps done."""
        self.total: int | None = None
        self.group = group
        self.env = env
        self.sinks: list[Sink] = []
        """Rank 0's sinks for records; add your own."""
        self.on_start: Callable[[State], None] | None = None
        """Called once by `steps`, after the load and before the first step."""
        self._config = config
        self.objects = objects
        self._progress = ProgressReporter(env.agent_socket, rank=group.rank, attempt=env.attempt)
        every = config.checkpoint.every_steps or env.checkpoint_every or DEFAULT_EVERY_STEPS
        self._saves = CheckpointManager(
            self._open_store(), config.checkpoint, objects,
            every=every, first_rank=group.rank == 0, progress=self._progress, notify=self.notify,
        )  # fmt: skip
        snapshot_every = config.checkpoint.snapshot_every_steps
        folder = self._saves.store.directory if self._saves.store else None
        self._snapshots = MemorySnapshots(env, group, objects, snapshot_every, self.notify, folder)
        self._save_requested = False
        self._in_step = False
        self._record: Record | None = None
        self._latest: dict[str, float] = {}
        self._latest_step = 0
        self.own_seconds: float | None = None
        """This rank's own work in the last step, without waits for others, if it is measured."""
        self._nonfinite = 0
        self._reported_nonfinite = False
        self._samples = 0
        self._stop = threading.Event()
        self._stop_consensus = StopConsensus(group, config.agree_seconds)
        if group.rank == 0:
            self.sinks.append(Console())
            if self._saves.store:
                # In a thread: a volume that hangs would hold the training thread in the kernel.
                path = self._saves.store.directory / names.METRICS_FILE
                self.sinks.append(Background(names.METRICS_FILE, partial(JsonLines, path)))

    def _open_store(self) -> CheckpointStore | None:
        config, env = self._config.checkpoint, self.env
        directory = config.own_folder(env.checkpoint_dir)
        if directory is None:
            return None
        retention = (
            replace(config.retention, keep_last=env.checkpoint_keep) if env.checkpoint_keep else config.retention
        )
        return CheckpointStore(
            Path(directory), self.group, replace(config, retention=retention), attempt=env.attempt, notify=self.notify
        )

    # --- the loop ------------------------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Resumes, then yields the number of each step still to do; saves on the way and at the end.

        A step is done when the loop requests the next one. A step that is left by `break` is not
        counted, so leave by `end`. Raises Stopped (exit code 143) after a SIGTERM to any rank, once
        the step is done and saved.
        """
        self.total = total
        previous = stop_signal.catch(self._stop)
        try:
            self.resume()
            if self.on_start:
                self.on_start(self)
            self._window_start = self._step_start = time.perf_counter()
            first = True
            if self.step < self.total:
                self._progress.phase("compiling")
            while self.step < self.total:
                self._in_step = True
                yield self.step
                self._in_step = False
                self.step += 1
                self._after_step(first)
                first = False
            if not first:
                at_the_end = self._stop_consensus.exchange(self.step, self._rank_status())
                self._check_loss(at_the_end.nonfinite, limit=min(1, self._config.max_nonfinite))
            self._saves.finish(self.step, self._metrics())
            if self._saves.store:
                self._snapshots.discard()
            self._progress.phase("done", step=self.step, total=self.total)
        finally:
            stop_signal.release(previous)
            self._in_step = False
            self._progress.linger()
            self._saves.close()
            self._snapshots.close()
            while self.sinks:
                self.sinks.pop().close()

    def resume(self) -> int:
        """Loads the newest state that all ranks have: a memory snapshot, else the newest valid checkpoint.

        Returns its step, 0 for a fresh start.
        """
        self._progress.phase("loading")
        source: ResumeSource | None = None
        if snapshot := self._snapshots.load(self._saves.newest):
            self.step, source = snapshot.step, snapshot.source
            self._saves.keep()
            self._print(f"resumed step {self.step} from {RESUMED_FROM[source]}")
        elif checkpoint := self._saves.load():
            self.step, source = checkpoint.step, "volume"
            self._print(f"resumed from {checkpoint.path.name}")
        self._snapshots.begin(self.step)
        self._progress.resumed(self.step, source)
        return self.step

    def report(
        self,
        *,
        loss: torch.Tensor | float | None = None,
        samples: int = 0,
        per_rank: dict[str, list[float]] | None = None,
        **metrics: torch.Tensor | float,
    ) -> None:
        """Reports the current step. A tensor is read only if the step is logged.

        Args:
            loss: Mean loss of the step.
            samples: Samples of the step over all ranks.
            per_rank: One number per rank, by name.
            metrics: Further numbers by name.
        """
        self._samples += samples
        if self.will_log:
            values = {k: _number(v) for k, v in metrics.items()}
            self._record = Record(
                step=self.step + 1,
                total_steps=self.total,
                attempt=self.env.attempt or 0,
                loss=None if loss is None else _number(loss),
                metrics=values,
                per_rank=per_rank or {},
            )

    @property
    def will_log(self) -> bool:
        """Whether the current step will be logged: at the interval, at the end, and when it is saved."""
        return (self.step + 1) % self._config.log_every_steps == 0 or self.step + 1 == self.total or self.will_save

    @property
    def will_save(self) -> bool:
        """Whether the current step will be saved, unless the previous save is still being written."""
        return (
            self._save_requested
            or self._saves.due(self.step + 1)
            or (self._saves.store is not None and self.step + 1 == self.total)
        )

    def pause(self, phase: Literal["loading", "compiling", "validating", "saving"]) -> AbstractContextManager[None]:
        """Announces a long pause between two steps, such as a validation, so that it is no hang.

        Use it as `with state.pause("validating"):` on every rank.
        """
        return self._progress.pause(phase)

    def announce_all_pauses(self) -> None:
        """Promises that `pause` announces every pause of two minutes or more, so that a hang is found sooner."""
        self._progress.announce_all_pauses()

    def exclude_time(self, seconds: float) -> None:
        """Excludes `seconds` (of a validation, for example) from samples_per_second."""
        self._window_start += seconds

    def pop_stall_seconds(self) -> float:
        """Returns the seconds that saves have held the training thread since the last call."""
        return self._saves.pop_stall_seconds()

    def save(self) -> None:
        """Saves, in addition to the saves at the interval. Call it on all ranks at the same step.

        Within a step, the save begins when that step is done, and has its number. Before or after
        the loop, the save begins at once and is waited for. If called before the step's `report`,
        the save has the step's own metrics, by which `keep_best` ranks it.
        """
        if self._in_step:
            self._save_requested = True
        else:
            self._saves.begin(self.step, self._metrics())
            self._saves.settle()

    def end(self) -> None:
        """Makes the current step the last one (early stopping).

        Call it on all ranks in the same step.
        """
        self.end_at(self.step + 1)

    def end_at(self, step: int) -> None:
        """Ends the run once `step` steps are done. Call it on all ranks in the same step."""
        self.total = step

    def notify(self, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Reports an event to the agent and to the log."""
        log.log(logging.WARNING if type_ == "Warning" else logging.INFO, "%s: %s", reason, message)
        self._progress.event(type_, reason, message)

    def close(self) -> None:
        """Closes the socket, and the group if this State opened it, after the last `steps`."""
        self._progress.close()
        self.group.close()

    # --- after each step -------------------------------------------------------------------------------------------

    def _after_step(self, first: bool) -> None:
        now = time.perf_counter()
        step_seconds = None if first else now - self._step_start
        self._snapshots.settle(self.step)
        if first and (age := worker_age()) is not None:
            self._print(f"first step done {age:.2f} s after the worker started")
        elif step_seconds is not None:
            self._stop_consensus.record_step_seconds(step_seconds)
        self._log(now, first)
        self._saves.poll()
        requested, self._save_requested = self._save_requested, False
        due = self._saves.due(self.step) and self.step != self.total
        if due or requested or self._stop_consensus.due(self.step):
            any_rank = self._stop_consensus.exchange(self.step, self._rank_status())
            self._check_loss(any_rank.nonfinite, limit=self._config.max_nonfinite)
            self._snapshots.agreed(any_rank.snapshot_seconds, any_rank.step_seconds)
            if any_rank.stop:
                self._saves.finish(self.step, self._metrics())
                self._snapshots.take_last(self.step)
                raise Stopped(self.step)
            if requested:
                self._saves.begin(self.step, self._metrics())
            elif due:
                self._saves.begin_unless(any_rank.busy, self.step, self._metrics(), overdue=any_rank.overdue)
        if self.step != self.total:
            self._snapshots.after_step(self.step, step_seconds)
        self._step_start = time.perf_counter()

    def _metrics(self) -> dict[str, float]:
        """Returns the metrics that rank a checkpoint of this step; {} if the latest are of another one."""
        return self._latest if self._latest_step == self.step else {}

    def _rank_status(self) -> RankStatus:
        return RankStatus(
            stop=self._stop.is_set(),
            busy=self._saves.busy,
            overdue=self._saves.overdue,
            nonfinite=self._nonfinite,
            snapshot_seconds=self._snapshots.cost,
            step_seconds=self._snapshots.step_seconds,
        )

    def _check_loss(self, nonfinite: int, *, limit: int) -> None:
        """Raises NonFiniteLoss on all ranks once one of them has logged `limit` losses in a row
        that were not finite.

        Rank 0 reports the first of them as an event.
        """
        if nonfinite and not self._reported_nonfinite and self.group.rank == 0:
            self.notify("Warning", names.Reason.LOSS_NOT_FINITE, f"the loss is NaN or infinite at step {self.step}")
        self._reported_nonfinite = nonfinite > 0
        if limit and nonfinite >= limit:
            self._snapshots.discard()  # they may hold what the loss comes from
            raise NonFiniteLoss(
                f"the loss is NaN or infinite at step {self.step}, as in {nonfinite} logged steps in a row: check the "
                "learning rate, the data and the precision (clip_norm helps), or raise max_nonfinite"
            )

    def _count_nonfinite(self, record: Record) -> None:
        self._nonfinite = 0 if record.loss is None or math.isfinite(record.loss) else self._nonfinite + 1

    def _log(self, now: float, first: bool) -> None:
        record, self._record = self._record, None
        if record:
            self._count_nonfinite(record)
            if self._nonfinite:
                record.metrics["nonfinite_losses"] = float(self._nonfinite)
            rate = self._samples / (now - self._window_start) if self._samples else None
            record = replace(record, samples_per_second=rate)
            self._samples, self._window_start = 0, now
            self._latest_step = record.step
            self._latest = record.metrics | ({"loss": record.loss} if record.loss is not None else {})
            self._write(record)
        self._progress.step(
            self.step,
            self.total,
            loss=self._latest.get("loss"),
            samples_per_second=record.samples_per_second if record else None,
            own_seconds=None if first else self.own_seconds,
            metrics={k: v for k, v in self._latest.items() if k != "loss"},
            now=first,
        )

    def _write(self, record: Record) -> None:
        for sink in list(self.sinks):
            try:
                sink.write(record)
            # A full volume must not end the training; the other sinks continue.
            except (OSError, SinkError) as e:
                message = f"{type(sink).__name__}: {e}; this sink gets no further records"
                self.notify("Warning", names.Reason.SINK_FAILED, message)
                self.sinks.remove(sink)

    def _print(self, text: str) -> None:
        if self.group.rank == 0:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _number(value: torch.Tensor | float) -> float:
    return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)
