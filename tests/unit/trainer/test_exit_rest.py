"""The interpreter exits only when no thread of gloo needs the GIL: it would abort after all work is done."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from dtj_trainer.distributed import exit_rest

pytestmark = pytest.mark.torch
SCRIPT = """
import atexit, os, threading, time
import torch, torch.distributed as dist
from dtj_trainer.distributed import exit_rest
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv

exit_rest.PATIENCE_SECONDS = 200.0  # on a busy machine half a second of work takes long
group = Group.open(WorkerEnv())
kept = dist.group.WORLD  # as DistributedDataParallel does: else the group waits for its threads when it is destroyed
main, began, leaving = threading.get_ident(), threading.Event(), threading.Event()
atexit.register(leaving.set)

def called(_):
    if threading.get_ident() != main and not began.is_set():
        began.set()
        leaving.wait(100)
        end = time.thread_time() + 0.5
        while time.thread_time() < end:
            pass
        os.write(1, b"called back")

sent = torch.ones(5_000_000)
end = time.monotonic() + 100
while not began.wait(0.1) and time.monotonic() < end:  # else the collective has ended before its callback is known
    work = dist.all_to_all_single(torch.empty_like(sent), sent, async_op=True)
    work.get_future().add_done_callback(called)
    work.wait()
group.close()
"""


@pytest.mark.thorough
def test_exit_waits_for_the_callbacks_of_collectives() -> None:
    """A collective's callback computes in a thread of gloo when the script has ended.

    Without the wait the process ends with SIGABRT: "terminate called without an active exception".
    """
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=550)
    assert (run.returncode, run.stdout) == (0, "called back"), run.stderr


def test_wait_for_a_thread_that_never_rests_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_rest, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(exit_rest, "_states", lambda: iter("R"))
    waits = threading.Thread(target=exit_rest.await_rest, daemon=True)
    waits.start()
    waits.join(60)
    assert not waits.is_alive()


def test_threads_are_found_by_their_name_and_must_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(["R", "SD", "SS", "R", "SS", "SS", "SS"])
    monkeypatch.setattr(exit_rest, "_states", lambda: iter(next(looks)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    exit_rest.await_rest()
    assert next(looks, None) is None, "three looks in a row"
