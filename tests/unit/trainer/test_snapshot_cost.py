"""The cost of a snapshot beside the training: its own thread, and those that send its copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dtj_trainer.snapshots.beside import SHORTEST, BesideClock

T = TypeVar("T")


def burn(seconds: float) -> None:
    """Computes until this thread has used so much of a core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def in_thread(work: Callable[[], T]) -> T:
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_threads_that_send_the_copies_count_and_the_training_does_not() -> None:
    clock = BesideClock()
    clock.begin()
    assert in_thread(clock.end) < 0.02, "the first one"
    burn(20 * SHORTEST)  # the start of a thread is little of it
    clock.begin()
    in_thread(lambda: burn(0.1))
    burn(0.2)
    cost = in_thread(lambda: (burn(0.05), clock.end())[1])
    assert 0.1 < cost < 0.25, "0.15 s, neither 0.05 s of its own thread nor 0.35 s of all"


def test_what_other_threads_use_without_a_snapshot_is_subtracted() -> None:
    clock, stop = BesideClock(), threading.Event()

    def serve() -> None:
        while not stop.wait(0.002):
            burn(0.002)

    server = threading.Thread(target=serve)
    server.start()
    try:
        clock.begin()
        in_thread(clock.end)
        time.sleep(0.5)
        clock.begin()
        time.sleep(0.5)
        assert in_thread(clock.end) < 0.15, "of some 0.25 s that the server used"
    finally:
        stop.set()
        server.join()
