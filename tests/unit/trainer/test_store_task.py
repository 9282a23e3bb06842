"""The thread that writes a checkpoint has ended before the interpreter may exit."""

from __future__ import annotations

import threading

import pytest

from dtj_trainer.checkpoint.background_task import BackgroundTask


def test_result_waits_for_the_end_of_the_thread() -> None:
    """Otherwise the interpreter can exit under a daemon thread that is inside torch, which aborts
    the process (SIGABRT)."""
    release = threading.Event()
    task = BackgroundTask(lambda: release.wait(90))
    assert not task.done()
    release.set()
    assert task.result() is True
    assert not task._thread.is_alive()


def test_result_raises_the_error_of_the_thread() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        BackgroundTask(fail).result()
