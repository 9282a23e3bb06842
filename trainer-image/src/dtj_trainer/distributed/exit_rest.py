"""Lets torch's threads of gloo rest before the interpreter exits.

A thread of gloo first wakes the caller of a collective. Then it calls Python's callbacks and frees the tensors,
and needs the GIL for both. An interpreter that has begun to exit gives the GIL to no other thread: it ends the thread
that asks for it. The thread is within C++ that can't be left so, and the process aborts with "terminate called
without an active exception", after its work is done.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_SECONDS = 10.0
"""How long the exit waits at most. Only a callback that computes, or a busy machine, takes longer than a look."""
LOOK_SECONDS = 0.001
RESTS = 3
"""Looks in a row: a thread that has just got the GIL may not be shown as running yet."""
GLOO = "(pt_gloo_runloop)"
"""The name of the threads that execute collectives, as Linux shows it."""
TASKS = Path("/proc/self/task")


def await_rest_at_exit() -> None:
    """Makes this process wait at its exit, after the exit handlers that are registered later."""
    atexit.unregister(await_rest)
    atexit.register(await_rest)


def await_rest() -> None:
    """Waits until the threads of gloo sleep, or `PATIENCE_SECONDS` have passed.

    The GIL is free meanwhile, so a thread that sleeps does not wait for it. Threads that wait for another rank
    sleep too. Without Linux's /proc no thread is known.
    """
    end, rests = time.monotonic() + PATIENCE_SECONDS, 0
    while rests < RESTS and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        rests = rests + 1 if all(state == "S" for state in _states()) else 0


def _states() -> Iterator[str]:
    """Yields the state of each thread of gloo, R or S for most."""
    for task in TASKS.glob("*/stat"):
        try:
            text = task.read_text()
        except OSError:  # the thread has ended
            continue
        _, name, rest = text.partition(GLOO)
        if name:
            yield rest.split()[0]
