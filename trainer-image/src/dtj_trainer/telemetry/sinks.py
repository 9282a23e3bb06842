"""TensorBoard and MLflow, written by a thread.

Importing them takes seconds, and a tracking server may be slow or down.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtj_trainer.errors import ConfigError, SinkError
from dtj_trainer.telemetry.record import Record, Sink

log = logging.getLogger(__name__)
QUEUE_RECORDS = 1000
CLOSE_SECONDS = 5.0
MLFLOW_PARAMS = 100  # the most per call
IMPORTING = threading.RLock()
"""Held by a sink's thread while it imports; a fork waits for it.

A child inherits the parent's import locks, but not the thread that would release them. A
loader's worker whose data set imports what that thread was importing would wait for ever, and the
training with it.
"""
os.register_at_fork(before=IMPORTING.acquire, after_in_parent=IMPORTING.release, after_in_child=IMPORTING.release)


@dataclass(kw_only=True, slots=True)
class TelemetryConfig:
    """Where else records go, besides console, agent and metrics.jsonl, and what else is measured."""

    tensorboard: Path | None = None
    """Folder of the event files."""
    mlflow: str | None = None
    """Tracking URI: sqlite:////shared/mlflow.db, or http://server:5000."""
    mlflow_experiment: str = "default"
    peak_flops: float | None = None
    """Peak FLOP/s of one rank's device, for MFU; None: that of a common GPU, else no MFU."""
    single_rank_samples_per_second: float | None = None
    """Rate of a run of one rank on the same device, for scaling_efficiency; None: no such metric."""
    profile: ProfileConfig | None = None

    def __post_init__(self) -> None:
        if self.mlflow is not None and not self.mlflow.startswith(("sqlite:", "http:", "https:")):
            raise ConfigError(f"telemetry.mlflow={self.mlflow!r}: write sqlite:////path/mlflow.db or http(s)://server")
        if self.peak_flops is not None and self.peak_flops <= 0:
            raise ConfigError(f"telemetry.peak_flops={self.peak_flops}: write FLOP/s above 0, or leave it out")
        rate = self.single_rank_samples_per_second
        if rate is not None and rate <= 0:
            raise ConfigError(
                f"telemetry.single_rank_samples_per_second={rate}: write samples/s above 0, as a run of one rank has "
                "logged them, or leave it out"
            )


@dataclass(kw_only=True, slots=True)
class ProfileConfig:
    """A window of steps that torch.profiler records."""

    directory: Path
    """Folder of trace-rank<r>-<start>-<stop>.json, to be opened in Perfetto or chrome://tracing."""
    start: int = 10
    """First step recorded; earlier steps warm up."""
    stop: int = 15
    """The step after the last one recorded."""
    ranks: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.directory = Path(self.directory)
        if not 0 <= self.start < self.stop:
            raise ConfigError(f"telemetry.profile: start={self.start} must be at least 0 and below stop={self.stop}")


class Background:
    """A sink that another thread creates and writes; the training thread only queues records."""

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self._name = name
        self._make = make
        self._queue: queue.Queue[Record | None] = queue.Queue(QUEUE_RECORDS)
        self._error: Exception | None = None
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"dtj-{name}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Queues a record without waiting; drops it if the queue is full.

        Raises SinkError if an earlier record failed.
        """
        if self._error is not None:
            raise SinkError(f"{self._name}: {self._error}") from self._error
        if not self._thread.is_alive():
            raise SinkError(f"{self._name}: its thread has ended; see the traceback in the log")
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Waits a few seconds at most for the queued records."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            log.warning("%s did not write its last records within %g s", self._name, CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)
        if self._error is not None or self._dropped:
            log.warning("%s: dropped %d records; %s", self._name, self._dropped, self._error or "the sink was too slow")

    def _run(self) -> None:
        try:
            sink = self._make()
            while (record := self._queue.get()) is not None:
                sink.write(record)
            sink.close()
        except (OSError, SinkError, ImportError) as e:
            self._error = e


class TensorBoard:
    """Writes scalars under their own names."""

    def __init__(self, folder: Path) -> None:
        with IMPORTING:
            from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, record: Record) -> None:
        """Writes all numbers of a record."""
        for name, value in record.numbers().items():
            self._writer.add_scalar(name, value, record.step, walltime=record.time)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()


class Mlflow:
    """Writes one MLflow run per job: a later attempt continues the run of earlier attempts.

    The run is found by its tag `dtj.job`, which is `namespace/name`.
    """

    def __init__(self, uri: str, experiment: str, job: str, parameters: dict[str, str]) -> None:
        with IMPORTING:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException

        self._metric, self._failure = Metric, MlflowException
        try:
            self._client: Any = MlflowClient(uri)
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment)
            runs = self._client.search_runs([number], f"tags.`dtj.job` = '{job}'", max_results=1)
            if runs:
                self._run = runs[0].info.run_id
                self._client.update_run(self._run, status="RUNNING")
            else:
                self._run = self._client.create_run(
                    number, tags={"dtj.job": job}, run_name=job.rpartition("/")[2]
                ).info.run_id
                params = [Param(name, value[:500]) for name, value in parameters.items()]
                for at in range(0, len(params), MLFLOW_PARAMS):
                    self._client.log_batch(self._run, params=params[at : at + MLFLOW_PARAMS])
        except MlflowException as e:
            raise SinkError(f"mlflow at {uri}: {e}") from e

    def write(self, record: Record) -> None:
        """Writes all numbers of a record in one call."""
        at = int(record.time * 1000)
        metrics = [self._metric(name, value, at, record.step) for name, value in record.numbers().items()]
        try:
            self._client.log_batch(self._run, metrics=metrics)
        except self._failure as e:
            raise SinkError(f"mlflow: {e}") from e

    def close(self) -> None:
        """Marks the run as finished; a later attempt marks it as running again."""
        try:
            self._client.set_terminated(self._run)
        except self._failure as e:
            raise SinkError(f"mlflow: {e}") from e
