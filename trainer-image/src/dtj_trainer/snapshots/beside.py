"""Measures the processor time that a snapshot takes beside the training thread.

Its thread is only a part: copies for the partner are sent and received by threads of gloo, which also serve the
training. The time that they take without a snapshot is subtracted.
"""

from __future__ import annotations

import threading
import time

SHORTEST = 0.005
"""Seconds without a snapshot below which the use of the other threads is not known."""


class BesideClock:
    """The processor time of all threads but the one that trains, in which it is created."""

    def __init__(self) -> None:
        # Not on macOS, where only the snapshot's own thread counts.
        of_thread = getattr(time, "pthread_getcpuclockid", None)
        self._training: int | None = of_thread(threading.get_ident()) if of_thread else None
        self._usual: float | None = None
        """Processor seconds per second without a snapshot."""
        self._began = self._ended = (0.0, 0.0)

    def begin(self) -> None:
        """Begins a snapshot, in the training thread."""
        now = self._now()
        cpu, wall = now[0] - self._ended[0], now[1] - self._ended[1]
        if self._ended[1] and wall >= SHORTEST:
            self._usual = cpu / wall
        self._began = now

    def end(self) -> float:
        """Ends a snapshot, in its own thread. Returns the processor seconds that it took.

        For the first snapshot, the use of the other threads is not known yet: only its own thread counts.
        """
        self._ended = self._now()
        if self._usual is None or self._training is None:
            return time.thread_time()
        cpu, wall = self._ended[0] - self._began[0], self._ended[1] - self._began[1]
        return max(time.thread_time(), cpu - self._usual * wall)

    def _now(self) -> tuple[float, float]:
        training = time.clock_gettime(self._training) if self._training is not None else 0.0
        return time.process_time() - training, time.perf_counter()
