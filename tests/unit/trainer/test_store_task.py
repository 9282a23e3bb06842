"""The thread that writes a checkpoint is gone before anybody may end the interpreter."""

from __future__ import annotations

import threading

import pytest

from dtj_trainer.checkpoint.background_task import BackgroundTask


def test_whoever_has_the_result_has_outlived_the_thread() -> None:
    """Else the interpreter can end under a daemon thread that is inside torch, which aborts the process (SIGABRT)."""
    release = threading.Event()
    task = BackgroundTask(lambda: release.wait(10))
    assert not task.done()
    release.set()
    assert task.result() is True
    assert not task._thread.is_alive()


def test_an_error_of_the_thread_is_raised_to_whoever_takes_the_result() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        BackgroundTask(fail).result()
