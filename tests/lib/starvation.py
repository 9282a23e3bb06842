"""Seconds that a busy machine takes from whoever runs on it, so that a test can bound what real processes take."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

TICK_SECONDS = 0.05


class Starvation:
    """Adds up in `seconds` how late a thread is that only sleeps, while the block runs. On an idle machine: nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _measure(self) -> None:
        ends = False
        while not ends:
            began = time.monotonic()
            ends = self._end.wait(TICK_SECONDS)
            self.seconds += max(0.0, time.monotonic() - began - TICK_SECONDS)
