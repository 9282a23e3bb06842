"""Which job is looked at next: a coalescing work queue with back-off, one key at a time in one pair of hands.

As client-go's: a key that is added while it waits is there once; a key that is added while a worker has it comes back
when that worker is done; a key that failed comes back later and later. The clock is the event loop's own, so a test may run
it on a loop with virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF = 0.5
LAST_BACKOFF = 300.0


class QueueObserver(Protocol):
    """Where the queue's measurements go. All times in seconds."""

    def added(self) -> None: ...

    def taken(self, waited: float) -> None: ...

    def worked(self, seconds: float) -> None: ...

    def retried(self) -> None: ...


class WorkQueue(Generic[K]):
    """Keys to work on. Every method but `get` returns at once; all of them are for one event loop."""

    def __init__(
        self, observer: QueueObserver, *, first_backoff: float = FIRST_BACKOFF, last_backoff: float = LAST_BACKOFF
    ) -> None:
        self._observer = observer
        self.first_backoff = first_backoff
        self._last = last_backoff
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}  # waits, or must come again when its worker is done: key -> since when
        self._processing: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wakers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Keys that could be taken now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Look at `key` as soon as a worker is free. A key that already waits is not added twice."""
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = asyncio.get_running_loop().time()
        self._observer.added()
        if key not in self._processing:
            self._push(key)

    def add_after(self, key: K, delay: float) -> None:
        """`add` after `delay` seconds; of several waits for one key the shortest holds."""
        if self._closed:
            return
        if delay <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        pending = self._timers.get(key)
        if pending is not None:
            if pending.when() <= loop.time() + delay:
                return
            pending.cancel()
        self._timers[key] = loop.call_later(delay, self._due, key)

    def add_rate_limited(self, key: K) -> float:
        """`add_after` with a wait that doubles from try to try until `forget`; returns the wait in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(self.first_backoff * 2.0 ** min(failures, 64), self._last)
        self._observer.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key is well: its next failure waits `first_backoff` again."""
        self._failures.pop(key, None)

    async def get(self) -> K | None:
        """The next key, None when the queue is closed. Who gets a key must call `done` with it."""
        while not self._ready:
            if self._closed:
                return None
            waker = asyncio.get_running_loop().create_future()
            self._wakers.append(waker)
            try:
                await waker
            except asyncio.CancelledError:
                self._pass_on(waker)
                raise
        if self._closed:
            return None
        key = self._ready.popleft()
        now = asyncio.get_running_loop().time()
        self._observer.taken(now - self._dirty.pop(key))
        self._processing[key] = now
        # What is decided now says anew when to look again: an older wait would only cost a needless look.
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def done(self, key: K) -> None:
        """The worker is finished with `key`; if it was added meanwhile it waits again from now on."""
        started = self._processing.pop(key)
        self._observer.worked(asyncio.get_running_loop().time() - started)
        if key in self._dirty and not self._closed:
            self._push(key)

    def close(self) -> None:
        """Nothing is handed out any more; workers that wait get None, those that work finish."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._wakers:
            self._wake()

    def longest_processing(self) -> float:
        """Seconds since the oldest key in a worker's hands was taken; 0 if none is. The measure of a stuck worker."""
        if not self._processing:
            return 0.0
        return asyncio.get_running_loop().time() - min(self._processing.values())

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    def _push(self, key: K) -> None:
        self._ready.append(key)
        self._wake()

    def _wake(self) -> None:
        while self._wakers:
            waker = self._wakers.popleft()
            if not waker.done():
                waker.set_result(None)
                return

    def _pass_on(self, waker: asyncio.Future[None]) -> None:
        """A worker is cancelled while it waits: a wake-up that it has already got belongs to another."""
        if waker.cancelled() or not waker.done():
            if waker in self._wakers:
                self._wakers.remove(waker)
        elif self._ready:
            self._wake()
