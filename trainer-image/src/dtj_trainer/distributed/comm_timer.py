"""Measures one rank's collectives: how long one was in flight, and how long the host did nothing but wait.

These are host times. On a CPU with gloo they are right; on a GPU the host only queues collectives,
so nothing is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dtj_trainer.distributed.process_group import Group


@dataclass(frozen=True, kw_only=True, slots=True)
class CommStats:
    """Seconds of collectives in one step on one rank."""

    total: float
    """Seconds in which at least one collective was in flight."""
    exposed: float
    """Seconds of `total` in which this rank did nothing else: it waited, for the network or for a slower rank."""


class CommTimer:
    """Adds up the collectives of training steps.

    Collectives outside of `counting` (validation, checkpoints) do not count.
    """

    def __init__(self, group: Group) -> None:
        self.enabled = group.device.type == "cpu" and group.world_size > 1
        """Whether anything is measured at all."""
        self._counting = False
        self._lock = threading.Lock()  # gloo's threads call `_ended`
        self._in_flight, self._since = 0, 0.0
        self._total = self._exposed = 0.0
        self._steps = 0
        self._last: CommStats | None = None

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts what is sent or waited for inside as a part of the step."""
        self._counting = self.enabled
        try:
            yield
        finally:
            self._counting = False

    def track(self, work: dist.Work | torch.futures.Future[torch.Tensor] | None) -> None:
        """Counts a collective as in flight until its future is done. Costs some 5 µs.

        gloo's reduce-scatter has no future. Only the wait for it counts, so `total` is a lower
        bound.
        """
        if self._counting and work is not None:
            self._began()
            future = work.get_future() if isinstance(work, dist.Work) else work
            future.add_done_callback(lambda _: self._ended())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as a wait of the host for a collective, tracked before or begun just now."""
        if not self._counting:
            yield
            return
        started = time.perf_counter()
        self._began()
        try:
            yield
        finally:
            self._exposed += time.perf_counter() - started
            self._ended()

    def add_blocked(self, seconds: float) -> None:
        """Adds a wait that was measured elsewhere, while nothing was in flight."""
        if self._counting:
            self._exposed += seconds
            with self._lock:
                self._total += seconds

    def step_done(self) -> None:
        """Counts a step."""
        self._steps += 1

    def pop_stats(self) -> CommStats | None:
        """Returns means per step since the last call, or the last ones again if there was no step since.

        Returns None where nothing is measured.
        """
        if self.enabled and self._steps:
            with self._lock:
                total, self._total = self._total, 0.0
            exposed, self._exposed = self._exposed, 0.0
            self._last = CommStats(total=max(total, exposed) / self._steps, exposed=exposed / self._steps)
            self._steps = 0
        return self._last

    def _began(self) -> None:
        with self._lock:
            if self._in_flight == 0:
                self._since = time.perf_counter()
            self._in_flight += 1

    def _ended(self) -> None:
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._total += time.perf_counter() - self._since
