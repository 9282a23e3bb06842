"""The thread that writes a checkpoint has ended before the interpreter may exit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from dtj_trainer.checkpoint.background_task import BackgroundTask
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.snapshots.memory import MemorySnapshots
from dtj_trainer.snapshots.place import Place


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


class Alone:
    rank, world_size, device = 0, 1, torch.device("cpu")


@pytest.mark.parametrize(("at_the_end", "seconds"), [(True, 60.0), (False, 5.0)])
def test_end_of_a_run_waits_longer_for_the_last_snapshot_than_an_error_does(
    tmp_path: Path, at_the_end: bool, seconds: float
) -> None:
    """At the end all ranks are there, and a slow one keeps the thread of this rank in a collective of torch."""
    waited: list[float] = []

    class Task:
        def join(self, seconds: float) -> None:
            waited.append(seconds)

    env, group = WorkerEnv(), cast("Group", Alone())
    snapshots = MemorySnapshots(env, group, {}, every=0, notify=lambda *_: None)
    snapshots._enabled, snapshots._task = True, cast("Any", Task())
    snapshots._place = Place(directory=tmp_path / "none", job="job", attempt=1, pod=0, state=1)
    if at_the_end:
        snapshots.discard()
    else:
        snapshots.close()
    assert waited == [seconds]
