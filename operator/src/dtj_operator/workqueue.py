"""A coalescing work queue with back-off: which job is reconciled next, and by one worker only.

Modelled on client-go's workqueue. A key that is added while it waits is queued once. A key that
is added while a worker has it returns to the queue when that worker is done. A key that failed
returns after a growing delay. The clock is the event loop's own, so a test may run the queue on
a loop with virtual time.
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
    """Receives the queue's measurements. All times are in seconds."""

    def added(self) -> None: ...

    def taken(self, waited: float) -> None: ...

    def worked(self, seconds: float) -> None: ...

    def retried(self) -> None: ...


class WorkQueue(Generic[K]):
    """Keys to work on. Every method but `get` returns at once.

    All methods must be called on one event loop.
    """

    def __init__(
        self, observer: QueueObserver, *, first_backoff: float = FIRST_BACKOFF, last_backoff: float = LAST_BACKOFF
    ) -> None:
        self._observer = observer
        self.first_backoff = first_backoff
        self._last = last_backoff
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}
        """Time since when each key waits, or must be queued again once its worker is done."""
        self._processing: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wakers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Returns the number of keys that could be taken now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Queues `key` for the next free worker. A key that already waits is not added twice."""
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = asyncio.get_running_loop().time()
        self._observer.added()
        if key not in self._processing:
            self._push(key)

    def add_after(self, key: K, delay: float) -> None:
        """Calls `add` after `delay` seconds. The shortest of several delays for a key holds."""
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
        """Calls `add_after` with a delay that doubles with each call until `forget`.

        Returns the delay in seconds.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(self.first_backoff * 2.0 ** min(failures, 64), self._last)
        self._observer.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Resets the back-off of `key`: its next failure waits `first_backoff` again."""
        self._failures.pop(key, None)

    async def get(self) -> K | None:
        """Returns the next key, or None once the queue is closed.

        The caller must call `done` with the key.
        """
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
        # This reconcile decides when the next one is due; an older timer would only cost a needless
        # one.
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        return key

    def done(self, key: K) -> None:
        """Ends the work on `key`. If the key was added meanwhile, it is queued again now."""
        started = self._processing.pop(key)
        self._observer.worked(asyncio.get_running_loop().time() - started)
        if key in self._dirty and not self._closed:
            self._push(key)

    def clear(self) -> None:
        """Drops all keys that wait now or later, because another process works on them."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        self._dirty.clear()
        self._failures.clear()

    def close(self) -> None:
        """Hands out no more keys. Waiting workers get None; busy workers finish."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._wakers:
            self._wake()

    def longest_processing(self) -> float:
        """Returns the seconds since the oldest key in work was taken, or 0 if none is in work.

        The result measures how stuck a worker is.
        """
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
        """Wakes another worker if a cancelled worker has already received the wake-up."""
        if waker.cancelled() or not waker.done():
            if waker in self._wakers:
                self._wakers.remove(waker)
        elif self._ready:
            self._wake()
