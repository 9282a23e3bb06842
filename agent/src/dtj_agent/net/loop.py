"""The event loop: sockets, timers, signals and calls from helper threads, in one thread. asyncio would cost 10 MB."""

from __future__ import annotations

import heapq
import selectors
import signal
import socket
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Tuple

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Timer:
    """A pending call, until it runs or is cancelled."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Runs all callbacks in the thread that calls `run`; only `soon` may be called from other threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._count = 0
        self._soon: Deque[Callable[[], None]] = deque()
        self._signals: Dict[int, Callable[[], None]] = {}
        self._running = False
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self.watch(self._wake_out, READ, self._woken)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self._count += 1  # equal times run in the order of these calls
        heapq.heappush(self._timers, (self.clock() + seconds, self._count, timer))
        return timer

    def soon(self, callback: Callable[[], None]) -> None:
        """Runs `callback` in the loop's thread; safe from any thread."""
        self._soon.append(callback)
        try:
            self._wake_in.send(b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def watch(self, source: Any, events: int, callback: Callable[[int], None]) -> None:
        """Calls back with the ready events of a socket or file descriptor; replaces an earlier watch."""
        try:
            self._selector.modify(source, events, callback)
        except KeyError:
            self._selector.register(source, events, callback)

    def unwatch(self, source: Any) -> None:
        """Ends a watch. Call this before the source is closed."""
        try:
            self._selector.unregister(source)
        except KeyError:
            pass  # not watched; closing twice is no error

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        self._signals[number] = callback
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        signal.signal(number, lambda *_: self._soon.append(callback))

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        self._running = True
        while self._running:
            self.run_once()

    def run_once(self) -> None:
        # Input comes before timers: after a long pause (SIGSTOP, a starved CPU), messages that
        # peers have sent meanwhile are read before any peer is declared dead.
        for key, events in self._selector.select(self._patience()):
            watched = self._selector.get_map().get(key.fd)
            # An earlier callback of this round may have closed the source.
            if watched is not None and watched.fileobj is key.fileobj:
                watched.data(events)
        while self._soon:
            self._soon.popleft()()
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.callback()

    def _patience(self) -> float:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._soon:
            return 0.0
        return max(0.0, self._timers[0][0] - self.clock()) if self._timers else 1.0

    def _woken(self, _events: int) -> None:
        try:
            while self._wake_out.recv(4096):
                pass
        except BlockingIOError:
            pass
