"""Progress reports to the agent (contract: Progress).

Each report is a JSON object in a datagram. Reporting never blocks and never raises.

A report that can't be sent must not hold up training. A step report is dropped, because the next
one replaces it. A report that is made only once (phase, resumed step, checkpoint, event) is kept,
and sent before the next report.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from dtj_contract.worker_report import MAX_METRICS

Phase = Literal["loading", "compiling", "training", "validating", "saving", "done"]
ResumeSource = Literal["memory", "replica", "partner", "volume"]
RESUMED_FROM: dict[ResumeSource, str] = {
    "memory": "memory",
    "replica": "a replica's memory",
    "partner": "a partner's memory",
    "volume": "the volume",
}
MAX_UNSENT = 64
LINGER_SECONDS = 0.5  # for an agent that is behind
# Characters of an event's message, which keeps a datagram far below the socket's limit.
MAX_MESSAGE = 1024


def finite(value: float | None) -> float | None:
    """Returns `value` if it is finite, else None: the agent's JSON holds finite numbers only."""
    return value if value is not None and math.isfinite(value) else None


class ProgressReporter:
    """Reports a worker's progress to its agent. Without a socket every call is a no-op."""

    def __init__(self, path: Path | None, *, rank: int, attempt: int | None, min_interval: float = 0.05) -> None:
        """Opens the socket.

        `min_interval` is the seconds between two step reports; all others are sent at once.
        """
        self.dropped = 0
        self._phase: Phase = "loading"
        self._unsent: deque[bytes] = deque(maxlen=MAX_UNSENT)
        self._head: dict[str, object] = {"rank": rank, "attempt": attempt or 0}
        self._path = str(path) if path else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if path else None
        if self._socket:
            self._socket.setblocking(False)
        self._min_interval = min_interval
        self._last = -math.inf

    def step(
        self,
        step: int,
        total: int | None = None,
        *,
        loss: float | None = None,
        samples_per_second: float | None = None,
        own_seconds: float | None = None,
        metrics: Mapping[str, float] | None = None,
        now: bool = False,
    ) -> None:
        """Reports that `step` optimizer steps are done.

        Args:
            step: Optimizer steps done.
            total: Optimizer steps planned.
            loss: Mean loss of the last logged step.
            samples_per_second: Over all ranks.
            own_seconds: This rank's own work in the step, without waits for others.
            metrics: Further numbers by name.
            now: Send even if the last report was less than `min_interval` ago.
        """
        clock = time.monotonic()
        if self._socket is None or (not now and clock - self._last < self._min_interval):
            return
        self._last = clock
        self._phase = "training"
        flat = {k: v for k, v in (metrics or {}).items() if finite(v) is not None}
        self._send(
            step=step,
            totalSteps=total,
            loss=finite(loss),
            samplesPerSecond=finite(samples_per_second),
            ownSeconds=finite(own_seconds),
            once=False,
            phase="training",
            metrics=dict(list(flat.items())[:MAX_METRICS]) or None,
        )

    def phase(self, phase: Phase, *, step: int | None = None, total: int | None = None) -> None:
        """Reports what the worker is doing now.

        A report that the agent has no room for is waited for, at most half a second: a pause that
        is announced after it began looks like a hang.
        """
        self._phase = phase
        self._send(phase=phase, step=step, totalSteps=total)
        self.linger()

    @contextlib.contextmanager
    def pause(self, phase: Phase) -> Iterator[None]:
        """Announces a pause between steps, and its end."""
        before = self._phase
        self.phase(phase)
        try:
            yield
        finally:
            self.phase(before)

    def announce_all_pauses(self) -> None:
        """Promises that every pause is announced, so that the agent finds a hang sooner."""
        self._head["announcesPauses"] = True

    def resumed(self, step: int, source: ResumeSource | None = None) -> None:
        """Reports, once after a load, the step that was loaded and from where; 0 and None for a fresh start."""
        self._send(resumedStep=step, step=step, resumedFrom=source)

    def checkpoint(self, step: int, path: Path, when: float) -> None:
        """Reports a committed checkpoint. `when` is in Unix seconds."""
        self._send(checkpoint={"step": step, "path": str(path), "time": when})

    def event(self, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Reports something that a person should read in the job's events."""
        self._send(event={"type": type_, "reason": reason, "message": message[:MAX_MESSAGE]})

    def linger(self) -> None:
        """Sends what is unsent, for at most half a second."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self._socket and not self._flush() and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """Closes the socket; later reports are no-ops."""
        self.linger()
        if self._socket:
            self._socket.close()
            self._socket = None

    def _send(self, once: bool = True, **keys: object) -> None:
        if self._socket is None:
            return
        body = json.dumps(self._head | {k: v for k, v in keys.items() if v is not None}, separators=(",", ":")).encode()
        if once:
            self._unsent.append(body)
        if not (self._flush() and (once or self._one(body))) and not once:
            self.dropped += 1

    def _flush(self) -> bool:
        while self._unsent:
            if not self._one(self._unsent[0]):
                return False
            self._unsent.popleft()
        return True

    def _one(self, body: bytes) -> bool:
        if self._socket is None or self._path is None:
            return True
        try:
            self._socket.sendto(body, self._path)
        except OSError:  # buffer full, agent or socket gone
            return False
        return True

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.close()
