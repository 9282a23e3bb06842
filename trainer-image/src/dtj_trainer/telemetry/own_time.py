"""A rank's own work in a step, without waits for other ranks: it shows which rank holds up the group.

Ranks leave a step together, so the time of a whole step is the same on all of them. Data and forward
are a rank's own under DDP; backward holds the collective. A sharded forward waits for the others'
weights, so nothing is measured under FSDP.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
MAX_PENDING = 64


class OwnTime:
    """Adds up data and forward of a step. On a GPU the forward's time comes some steps later, without a wait."""

    def __init__(self, device: torch.device, *, measures: bool) -> None:
        self._measures = measures
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._pending: deque[tuple[float, list[tuple[Any, Any]]]] = deque(maxlen=MAX_PENDING)

    def add(self, seconds: float) -> None:
        """Adds time of the host that was measured elsewhere."""
        self._seconds += seconds

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Adds the time of a forward pass."""
        if not self._measures:
            yield
        elif self._on_gpu:
            began, ended = _event(), _event()
            began.record()
            yield
            ended.record()
            self._events.append((began, ended))
        else:
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started

    def step_done(self) -> float | None:
        """Ends a step. Returns the newest time that is known; None if there is none yet."""
        self._pending.append((self._seconds, self._events))
        self._seconds, self._events = 0.0, []
        newest = None
        while self._measures and self._pending and all(ended.query() for _, ended in self._pending[0][1]):
            seconds, events = self._pending.popleft()
            newest = seconds + sum(began.elapsed_time(ended) for began, ended in events) / 1000
        return newest
