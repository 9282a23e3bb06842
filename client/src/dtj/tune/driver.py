"""Drives an engine until the end of its sweep: lock, signals, page, deadline. Command and Python's `tune` share it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from dtj.errors import LocalRunError
from dtj.tune.engine import Engine, Observer, State
from dtj.tune.jobs import TrialJobs
from dtj.tune.page import page
from dtj.tune.planner import Limits
from dtj.tune.spec import SweepDocument
from dtj.tune.study import StudyStore, reported

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAGE_SECONDS = 5.0
PAGE = "sweep.html"
STORAGE = "sweep.db"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The end of a sweep."""

    state: State
    reason: str
    signal: int | None
    """The signal that stopped it."""


class PageWriter:
    """Passes everything to a view, and writes the page when trials have ended."""

    def __init__(self, view: Observer, store: StudyStore, path: Path) -> None:
        self._view = view
        self._store = store
        self._path = path
        self._shown = -1
        self._at = float("-inf")

    def event(self, text: str) -> None:
        self._view.event(text)

    def show(self, state: State) -> None:
        self._view.show(state)
        ended = len(state.trials) - len(state.jobs)
        if ended != self._shown and time.monotonic() - self._at >= PAGE_SECONDS:
            self.write(state)
            self._shown, self._at = ended, time.monotonic()

    def write(self, state: State) -> None:
        """Replaces the page."""
        new = self._path.with_suffix(".new")
        new.write_text(page(state, self._store.importance()))
        new.replace(self._path)


def drive(
    sweep: SweepDocument, limits: Limits, store: StudyStore, jobs: TrialJobs, folder: Path, view: Observer
) -> Result:
    """Runs the sweep. Returns its end."""
    seconds = sweep.spec.timeout_seconds
    if seconds is not None:
        limits = replace(limits, deadline=store.begin + seconds)
    engine = Engine(sweep, limits, store, jobs)
    writer = PageWriter(view, store, folder / PAGE)
    stopped: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)
        view.event(f"{signal.Signals(number).name}: stopping all trials gracefully; a second signal ends dtj at once")
        engine.stop.set()

    with _handled(on_signal), reported(folder / STORAGE):
        reason = engine.run(writer)
        state = engine.state()
        writer.write(state)
    return Result(state=state, reason=reason, signal=stopped[0] if stopped else None)


def limits_of(sweep: SweepDocument, parallel: int) -> Limits:
    """Returns the limits without the deadline, which depends on the begin of the sweep."""
    wanted = sweep.spec
    return Limits(
        trials=wanted.trials,
        parallel=parallel,
        maximize=wanted.objective.direction == "maximize",
        take_best=wanted.objective.value == "best",
        max_failed=wanted.max_failed_trials,
        step_seconds=wanted.step_deadline_seconds,
        generation=wanted.algorithm.population if wanted.algorithm.name == "pbt" else None,
    )


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks a sweep against a second tuner, until this process ends for whatever reason. Raises LocalRunError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LocalRunError(f"can't create {error.filename}: {error.strerror}; see --dir") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 20).decode(errors="replace").strip() or "unknown"
            raise LocalRunError(
                f"another dtj tune (process {holder}) runs the sweep in {folder}: wait for it, stop it, or give --dir"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _handled(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
