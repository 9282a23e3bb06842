"""Log output that never blocks the agent: a thread writes, and drops and counts the excess."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Callable, Deque, Optional

from dtj_contract import names

REOPEN_SECONDS = 30.0


class OutputSink:
    """A destination for log bytes. `write` may block and may raise OSError."""

    def write(self, data: bytes) -> None:
        raise NotImplementedError


class DescriptorSink(OutputSink):
    """An open file descriptor, e.g. stdout."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class RotatingFileSink(OutputSink):
    """Appends to `path`; at `limit` bytes the file becomes `path.1` and a new one begins.

    Opened at the first write, by the writer's thread.
    """

    def __init__(
        self, path: str, limit: int = names.LOG_ROTATE_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._limit = limit
        self._clock = clock
        self._descriptor: Optional[int] = None
        self._size = 0
        self._not_before = 0.0  # after an error: time of the next try

    def write(self, data: bytes) -> None:
        if self._clock() < self._not_before:
            raise OSError(0, "waiting before the next try")
        try:
            self._append(data)
        except OSError:
            self._not_before = self._clock() + REOPEN_SECONDS
            self._close()
            raise

    def _append(self, data: bytes) -> None:
        descriptor = self._open()
        if self._size and self._size + len(data) > self._limit:
            self._close()
            os.replace(self._path, self._path + ".1")
            descriptor = self._open()
        self._size += len(data)
        while data:
            data = data[os.write(descriptor, data) :]

    def _open(self) -> int:
        if self._descriptor is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._size = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class Valve:
    """Blocks workers while their log is full, but at most `patience` seconds for a log that does not drain. Pure.

    A log that is merely slow drains in between, which restarts the patience each time, so nothing
    is lost. A log that hangs costs its workers a single wait; after that their output is dropped
    until the log is no longer full.
    """

    def __init__(self, patience: float = names.BACK_PRESSURE_SECONDS) -> None:
        self._patience = patience
        self._full_since: Optional[float] = None

    def is_open(self, full: bool, now: float) -> bool:
        if not full:
            self._full_since = None
            return True
        if self._full_since is None:
            self._full_since = now
        return now - self._full_since >= self._patience


class LogWriter:
    """Feeds a sink from its own thread. Calls `on_trouble(text)` from that thread, once for each kind of error."""

    def __init__(
        self, sink: OutputSink, on_trouble: Callable[[str], None], limit: int = names.MAX_LOG_BACKLOG_BYTES
    ) -> None:
        self._sink = sink
        self._on_trouble = on_trouble
        self._limit = limit
        self._chunks: Deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._last_error: Optional[str] = None
        self._changed = threading.Condition()
        self._busy = False
        threading.Thread(target=self._work, name="dtj-log", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Queues the bytes, or drops them if the queue is full; never waits."""
        with self._changed:
            if self._size + len(data) > self._limit:
                self._dropped += len(data)
                return
            self._chunks.append(data)
            self._size += len(data)
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait than a sink that keeps up would leave."""
        return self._size >= names.FULL_LOG_BACKLOG_BYTES

    def flush(self, seconds: float) -> bool:
        """Waits at most `seconds` until all is written. Returns whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._chunks and not self._busy, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._chunks))
                data = b"".join(self._chunks)
                self._chunks.clear()
                self._size, self._busy = 0, True
                dropped, self._dropped = self._dropped, 0
            if dropped:
                data += b"[agent] %d bytes of output were dropped here: the log could not keep up\n" % dropped
            try:
                self._sink.write(data)
                self._last_error = None
            except OSError as error:
                if error.errno and error.strerror != self._last_error:
                    self._last_error = error.strerror
                    self._on_trouble("log output is lost: %s" % error.strerror)
