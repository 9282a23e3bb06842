"""Runs work in a thread beside the training."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
WRITER_NICE = 19
JOIN_SECONDS = 5.0
"""How long to wait for a thread that has its result or is about to: it ends at once or hangs on the volume."""


class BackgroundTask(Generic[T]):
    """Runs `work` in a daemon thread.

    The interpreter would wait for an executor's thread that a dead volume blocks. `result` waits
    for the thread too: an interpreter that exits while a daemon thread is inside torch unwinds it
    through C++ and aborts ("terminate called without an active exception").
    """

    def __init__(self, work: Callable[[], T], *, nice: int = WRITER_NICE) -> None:
        self._future: Future[T] = Future()
        self._work: Callable[[], T] | None = work
        self._nice = nice
        self._thread = threading.Thread(target=self._run, name="dtj-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        # On Linux this is the priority of the thread alone: training comes first.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        try:
            result = work()
        except BaseException as e:  # noqa: BLE001 - raised by `result`
            self._future.set_exception(e)
        else:
            del work  # frees the staged tensors before `done`
            self._future.set_result(result)

    def done(self) -> bool:
        """Returns whether the result is there."""
        return self._future.done()

    def wait(self, timeout: float) -> None:
        """Waits until the work is done.

        Raises concurrent.futures.TimeoutError after `timeout` seconds.
        """
        self._future.exception(timeout)

    def join(self, seconds: float = JOIN_SECONDS) -> None:
        """Waits at most `seconds` for the end of the thread, which a hanging volume blocks for longer."""
        self._thread.join(seconds)

    def result(self) -> T:
        """Returns what `work` returned, or raises what it raised. Call it when done."""
        self.join()
        return self._future.result()
