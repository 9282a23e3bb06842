"""Three lines in a loop of one's own: what is saved, the steps, the report.

    state = State(model=model, optimizer=optimizer, scheduler=scheduler)    # 1: what a checkpoint holds
    for step in state.steps(1000):                                          # 2: resumes, saves, stops on SIGTERM
        loss = ...
        state.report(loss=loss, samples=64)                                 # 3: progress, to the agent and the log

Without a checkpoint folder nothing is saved, without an agent nobody is told; the loop is the same.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch

from dtj_agent import names
from dtj_trainer.checkpoint.config import DEFAULT_EVERY_STEPS, CheckpointConfig
from dtj_trainer.checkpoint.contents import Contents
from dtj_trainer.checkpoint.store import CheckpointStore, SaveResult
from dtj_trainer.comm.group import Group
from dtj_trainer.env import WorkerEnv
from dtj_trainer.errors import CheckpointError, ConfigError, LeaseLost, SinkError, Stopped
from dtj_trainer.progress import Progress
from dtj_trainer.telemetry.record import Console, JsonLines, Record, Sink
from dtj_trainer.telemetry.startup import process_age

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class StateConfig:
    """How a State behaves; the defaults suit a job under our agent."""

    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log_every_steps: int = 10
    agree_seconds: float = 0.5
    """About how often the ranks tell each other whether one was asked to stop."""
    collective_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.log_every_steps < 1:
            raise ConfigError(f"log_every_steps={self.log_every_steps}: write 1 or more")
        if self.agree_seconds < 0 or self.collective_timeout_seconds <= 0:
            raise ConfigError("agree_seconds must be 0 or more, collective_timeout_seconds above 0")


class State:
    """Parts of a run by name: modules, optimizers, and anything with state_dict and load_state_dict."""

    def __init__(self, config: StateConfig | None = None, /, **parts: object) -> None:
        """Joins the group if the script has not; `attach` gives an environment or group of one's own."""
        env = WorkerEnv.read()
        config = config or StateConfig()
        group = Group.open(env, timeout=timedelta(seconds=config.collective_timeout_seconds))
        self._attach(config, env, group, parts)

    @classmethod
    def attach(cls, config: StateConfig, env: WorkerEnv, group: Group, /, **parts: object) -> State:
        """As the constructor, in a group that is there already."""
        self = cls.__new__(cls)
        self._attach(config, env, group, parts)
        return self

    def _attach(self, config: StateConfig, env: WorkerEnv, group: Group, parts: dict[str, object]) -> None:
        self.step = 0
        """Optimizer steps done."""
        self.total: int | None = None
        self.group = group
        self.env = env
        self.sinks: list[Sink] = []
        """Rank 0's places for records; add your own."""
        self._stall = 0.0
        self.on_start: Callable[[State], None] | None = None
        """Called once by `steps`, after the load and before the first step."""
        self._config = config
        self.parts = parts
        self._progress = Progress(env.agent_socket, rank=group.rank, attempt=env.attempt)
        self._every = config.checkpoint.every_steps or env.checkpoint_every or DEFAULT_EVERY_STEPS
        self._store = self._open_store()
        self._record: Record | None = None
        self._latest: dict[str, float] = {}
        self._samples = 0
        self._saved_step = -1
        self._failures = 0
        self._told_slow = False
        self._stop = threading.Event()
        self._next_agreement = 0
        self._step_seconds = 0.0
        if group.rank == 0:
            self.sinks.append(Console())
            if self._store:
                self.sinks.append(JsonLines(self._store.directory / names.METRICS_FILE))

    def _open_store(self) -> CheckpointStore | None:
        config, env = self._config.checkpoint, self.env
        directory = config.directory or env.checkpoint_dir
        if directory is None:
            return None
        retention = replace(config.retention, keep_last=env.checkpoint_keep) if env.checkpoint_keep else config.retention
        return CheckpointStore(
            Path(directory), self.group, replace(config, retention=retention), attempt=env.attempt, notify=self.notify
        )

    # --- the loop ------------------------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Resumes, then gives the number of every step still to do; saves on the way and at the end.

        Raises Stopped (exit code 143) after a SIGTERM to any rank, once the step is done and saved.
        """
        self.total = total
        previous = _on_sigterm(self._stop)
        try:
            self.resume()
            if self.on_start:
                self.on_start(self)
            self._window_start = self._step_start = time.perf_counter()
            first = True
            while self.step < self.total:
                yield self.step
                self.step += 1
                self._after_step(first)
                first = False
            self._final_save()
            self._progress.phase("done", step=self.step, total=self.total)
        finally:
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)
            self._progress.linger()
            if self._store:
                self._store.close()
            while self.sinks:
                self.sinks.pop().close()

    def resume(self) -> int:
        """Loads the newest valid checkpoint, if there is one. Gives the step it holds, 0 for a fresh start."""
        self._progress.phase("loading")
        checkpoint = self._store.load(Contents(self.parts)) if self._store else None
        if checkpoint:
            self.step = self._saved_step = checkpoint.step
            self._say(f"resumed from {checkpoint.path.name}")
        self._progress.resumed(self.step)
        return self.step

    def report(
        self,
        *,
        loss: torch.Tensor | float | None = None,
        samples: int = 0,
        per_rank: dict[str, list[float]] | None = None,
        **metrics: torch.Tensor | float,
    ) -> None:
        """What the step in hand has given. `samples`: over all ranks. A tensor is read only when the step is logged."""
        self._samples += samples
        if self.due:
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
    def due(self) -> bool:
        """The step in hand will be logged: every `log_every_steps`, and the last."""
        return (self.step + 1) % self._config.log_every_steps == 0 or self.step + 1 == self.total

    def take_stall(self) -> float:
        """Seconds that checkpoints have kept the training thread since the last call."""
        taken, self._stall = self._stall, 0.0
        return taken

    def end(self) -> None:
        """The step in hand is the last one (early stopping). Call it on all ranks in the same step."""
        self.total = self.step + 1

    def notify(self, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """An event for a person: to the agent and to the log."""
        log.log(logging.WARNING if type_ == "Warning" else logging.INFO, "%s: %s", reason, message)
        self._progress.event(type_, reason, message)

    def close(self) -> None:
        """Closes the socket and the group that we made, after the last `steps`."""
        self._progress.close()
        self.group.close()

    # --- after each step -------------------------------------------------------------------------------------------

    def _after_step(self, first: bool) -> None:
        now = time.perf_counter()
        if first and (age := process_age()) is not None:
            self._say(f"first step done {age:.2f} s after the process started")
        else:
            self._step_seconds = now - self._step_start
        self._log(now, first)
        if self._store and (result := self._store.poll()):
            self._take(result)
        due = bool(self._store and self.step % self._every == 0 and self.step != self.total)
        if due or self.step >= self._next_agreement:
            stop, busy = self._agree()
            if stop:
                self._final_save()
                raise Stopped(self.step)
            if due:
                self._save_unless(busy)
        self._step_start = time.perf_counter()

    def _log(self, now: float, first: bool) -> None:
        record, self._record = self._record, None
        if record:
            rate = self._samples / (now - self._window_start) if self._samples else None
            record = replace(record, samples_per_second=rate)
            self._samples, self._window_start = 0, now
            self._latest = record.metrics | ({"loss": record.loss} if record.loss is not None else {})
            self._write(record)
        self._progress.step(
            self.step,
            self.total,
            loss=self._latest.get("loss"),
            samples_per_second=record.samples_per_second if record else None,
            metrics={k: v for k, v in self._latest.items() if k != "loss"},
            now=first,
        )

    def _write(self, record: Record) -> None:
        for sink in list(self.sinks):
            try:
                sink.write(record)
            except (OSError, SinkError) as e:  # a full volume must not end the training; the other sinks go on
                self.notify("Warning", names.Reason.SINK_FAILED, f"{type(sink).__name__}: {e}; nothing more goes there")
                self.sinks.remove(sink)

    def _agree(self) -> tuple[bool, bool]:
        """What holds for any rank holds for all: (asked to stop, still writing). One small gather every `agree_seconds`."""
        busy = bool(self._store and self._store.busy)
        mine = torch.tensor([float(self._stop.is_set()), float(busy), self._step_seconds], dtype=torch.float64)
        stop, any_busy, slowest = self.group.gather(mine).amax(0).tolist()
        # Every rank computes the same number from the same gathered values, so they meet again at the same step.
        apart = int(self._config.agree_seconds / slowest) if slowest else 1  # the first step is not measured
        self._next_agreement = self.step + max(1, min(1000, apart))
        return bool(stop), bool(any_busy)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Saves now. Call it on all ranks at the same step."""
        if self._store and self._saved_step != self.step:
            self._settle()
            self._begin_save()

    def _save_unless(self, busy: bool) -> None:
        if busy and self._store:
            if self.group.rank == 0 and not self._told_slow:
                message = f"step {self.step} is not saved, and none until the save before it has been written"
                self.notify("Warning", names.Reason.CHECKPOINT_SLOW, message)
            self._told_slow = True
            if self._config.checkpoint.max_failures:
                self._store.check_deadline()
        else:
            self._settle()
            self._begin_save()

    def _begin_save(self) -> None:
        if self._store is None:
            return
        self._told_slow = False
        self._progress.phase("saving", step=self.step)
        metrics = {k: v for k, v in self._latest.items() if math.isfinite(v)}
        self._store.save(self.step, Contents(self.parts), metrics)
        self._stall += self._store.stall_seconds

    def _settle(self) -> None:
        """The save before this one has ended; its result is taken."""
        if self._store and (result := self._store.drain()):
            self._take(result)

    def _final_save(self) -> None:
        """At the end and before leaving: what is in flight, then this step, and wait for both."""
        self.save()
        self._settle()
        if self._store and self._saved_step != self.step:
            raise CheckpointError(
                f"step {self.step} could not be saved to {self._store.directory}; last saved: {self._saved_step}"
            )

    def _take(self, result: SaveResult) -> None:
        if result.outcome == "committed" and result.path:
            self._saved_step, self._failures = result.step, 0
            self._progress.checkpoint(result.step, result.path, result.time)
        elif result.outcome == "lease-lost":
            if self.group.rank == 0:
                self.notify("Warning", names.Reason.LEASE_LOST, result.message)
            raise LeaseLost(result.message)
        else:
            self._failed(names.Reason.CHECKPOINT_FAILED, f"step {result.step}: {result.message}")

    def _failed(self, reason: str, message: str) -> None:
        self._failures += 1
        if self.group.rank == 0:
            self.notify("Warning", reason, message)
        limit = self._config.checkpoint.max_failures
        if limit and self._failures >= limit:
            raise CheckpointError(f"{self._failures} checkpoints in a row were not written, the last: {message}")

    def _say(self, text: str) -> None:
        if self.group.rank == 0:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _number(value: torch.Tensor | float) -> float:
    return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)


def _on_sigterm(stop: threading.Event) -> Any:
    """Sets `stop` on SIGTERM and gives the handler before; None where we are not in the main thread and can't."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: stop.set())
