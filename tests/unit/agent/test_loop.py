"""The event loop."""

from __future__ import annotations

import os
import signal
import socket

from dtj_agent.net.loop import READ, Loop


def test_socket_closed_by_an_earlier_callback_is_not_called() -> None:
    """A new socket that has got the same file descriptor meanwhile is not called either."""
    loop = Loop()
    ends = [socket.socketpair() for _ in range(2)]
    called: list[str] = []
    fresh: list[socket.socket] = []

    def first(other: int) -> None:
        called.append("once")
        loop.unwatch(ends[other][0])
        ends[other][0].close()
        fresh.append(socket.socket())
        loop.watch(fresh[0], READ, lambda events: called.append("fresh"))

    loop.watch(ends[0][0], READ, lambda events: first(1))
    loop.watch(ends[1][0], READ, lambda events: first(0))
    for _, writer in ends:
        writer.send(b"x")
    loop.run_once()
    assert called == ["once"]
    for sock in (*fresh, *[end for pair in ends for end in pair]):
        sock.close()


def test_timers_run_in_order_and_after_input() -> None:
    time = [0.0]
    loop = Loop(clock=lambda: time[0])
    called: list[str] = []
    loop.later(2.0, lambda: called.append("late"))
    loop.later(1.0, lambda: called.append("a"))
    loop.later(1.0, lambda: called.append("b"))
    loop.later(1.0, lambda: called.append("cancelled")).cancel()
    reader, writer = socket.socketpair()
    loop.watch(reader, READ, lambda events: (called.append("input"), loop.unwatch(reader))[0])
    writer.send(b"x")
    # After a long pause, messages sent meanwhile are read before any peer is declared dead.
    time[0] = 5.0
    loop.run_once()
    assert called == ["input", "a", "b", "late"]
    reader.close()
    writer.close()


def test_signal_runs_its_callback_in_the_loop() -> None:
    loop = Loop()
    before = signal.getsignal(signal.SIGUSR1)
    try:
        loop.on_signal(signal.SIGUSR1, loop.stop)
        loop.later(0.0, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        loop.run()
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
