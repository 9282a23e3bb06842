"""Work in a thread beside the training."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
WRITER_NICE = 19
JOIN_SECONDS = 5.0  # for a thread that has its result, or is about to: it ends at once or hangs on the volume


class BackgroundTask(Generic[T]):
    """`work` in a daemon thread, not an executor: the interpreter would wait for an executor's thread that a dead volume holds.

    Whoever takes the result waits for the thread too: an interpreter that ends while a daemon thread is inside torch
    unwinds it through C++ and aborts ("terminate called without an active exception").
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._work: Callable[[], T] | None = work
        self._thread = threading.Thread(target=self._run, name="dtj-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        with contextlib.suppress(OSError):  # on Linux this is the thread's own priority: training goes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICE)
        try:
            result = work()
        except BaseException as e:  # noqa: BLE001 - handed to whoever takes the result, nothing is swallowed
            self._future.set_exception(e)
        else:
            del work  # the staged tensors go before anybody hears of the end
            self._future.set_result(result)

    def done(self) -> bool:
        """The result is there."""
        return self._future.done()

    def wait(self, timeout: float) -> None:
        """Until it is done. Raises concurrent.futures.TimeoutError after `timeout` seconds."""
        self._future.exception(timeout)

    def join(self) -> None:
        """Until the thread is gone, for a few seconds at most: a volume that does not answer holds it for longer."""
        self._thread.join(JOIN_SECONDS)

    def result(self) -> T:
        """What `work` gave or raised; call it when done."""
        self.join()
        return self._future.result()
