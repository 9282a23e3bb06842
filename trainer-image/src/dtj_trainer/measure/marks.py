"""Marks in time on the device that computes: a GPU's clock, where there is one, without a wait at each mark."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

_event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)


class Clock(Protocol):
    """Makes marks, whose distances can be read after `wait`."""

    def mark(self) -> Any:
        """Returns a mark at the end of the work that was requested so far."""
        ...

    def wait(self) -> None:
        """Waits until all marks are in the past."""
        ...

    def seconds(self, first: Any, second: Any) -> float:
        """Returns the seconds between two marks."""
        ...


class HostClock:
    """The clock of the CPU."""

    def mark(self) -> float:
        """Returns the time."""
        return time.perf_counter()

    def wait(self) -> None:
        """Returns at once: the CPU has done what it was asked for."""

    def seconds(self, first: float, second: float) -> float:
        """Returns the seconds between two times."""
        return second - first


class CudaClock:
    """Events on the current stream of the current GPU."""

    def mark(self) -> Any:
        """Returns an event behind the queued kernels."""
        event = _event()
        event.record()
        return event

    def wait(self) -> None:
        """Waits for the GPU."""
        torch.cuda.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        """Returns the seconds of the GPU between two events."""
        return float(first.elapsed_time(second)) / 1000


def clock_of(device: torch.device) -> Clock:
    """Returns the clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
