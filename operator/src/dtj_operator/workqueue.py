"""A coalescing work queue with back-off: which job is reconciled next, and by one worker only.

Jobs that are new or have changed are taken before those that are only looked at again, or have made mere progress.

Modelled on client-go's workqueue. A key that is added while it waits is queued once. A key that
is added while a worker has it returns to the queue when that worker is done. A key that failed
returns after a growing delay. The clock is the event loop's own, so a test may run the queue on
a loop with virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

# After so many changes in a row comes one job of the others, so that none waits for ever.
CHANGES_IN_A_ROW = 8
FIRST_BACKOFF = 0.5
LAST_BACKOFF = 300.0


class Priority(IntEnum):
    """Why a key is queued. Lower is more urgent."""

    CHANGED = 0
    AGAIN = 1


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
        self._lanes: tuple[deque[K], ...] = tuple(deque() for _ in Priority)
        """The keys that may be taken, by priority. A key that was raised is in both lanes."""
        self._dirty: dict[K, float] = {}
        """Time since when each key waits, or must be queued again once its worker is done."""
        self._urgency: dict[K, Priority] = {}
        """Of each dirty key."""
        self._ready = 0
        self._changes = 0
        """Changes taken in a row while others waited."""
        self._processing: dict[K, float] = {}
        self._timers: dict[K, tuple[asyncio.TimerHandle, Priority]] = {}
        self._failures: dict[K, int] = {}
        self._wakers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Returns the number of keys that could be taken now."""
        return self._ready

    def add(self, key: K, priority: Priority = Priority.CHANGED) -> None:
        """Queues `key` for the next free worker. A key that already waits is not added twice, but may be raised."""
        if self._closed:
            return
        if key in self._dirty:
            if priority < self._urgency[key]:
                self._urgency[key] = priority
                if key not in self._processing:
                    self._lanes[priority].append(key)
            return
        self._dirty[key] = asyncio.get_running_loop().time()
        self._urgency[key] = priority
        self._observer.added()
        if key not in self._processing:
            self._push(key)

    def add_after(self, key: K, delay: float, priority: Priority = Priority.AGAIN) -> None:
        """Calls `add` after `delay` seconds. The shortest of several delays for a key holds, and the most urgent."""
        if self._closed:
            return
        if delay <= 0:
            self.add(key, priority)
            return
        loop = asyncio.get_running_loop()
        pending = self._timers.get(key)
        when = loop.time() + delay
        if pending is not None:
            timer, known = pending
            priority = min(priority, known)
            if timer.when() <= when:
                if priority == known:
                    return
                when = timer.when()
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key, priority), priority

    def add_rate_limited(self, key: K) -> float:
        """Calls `add_after` with a delay that doubles with each call until `forget`.

        Returns the delay in seconds.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(self.first_backoff * 2.0 ** min(failures, 64), self._last)
        self._observer.retried()
        self.add_after(key, delay, Priority.CHANGED)
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
        key = self._pop()
        now = asyncio.get_running_loop().time()
        self._observer.taken(now - self._dirty.pop(key))
        self._processing[key] = now
        # This reconcile decides when the next one is due; an older timer would only cost a needless
        # one.
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[0].cancel()
        return key

    def done(self, key: K) -> None:
        """Ends the work on `key`. If the key was added meanwhile, it is queued again now."""
        started = self._processing.pop(key)
        self._observer.worked(asyncio.get_running_loop().time() - started)
        if key in self._dirty and not self._closed:
            self._push(key)

    def close(self) -> None:
        """Hands out no more keys. Waiting workers get None; busy workers finish."""
        self._closed = True
        for timer, _ in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._wakers:
            self._wake()

    def open(self) -> None:
        """Hands out keys again after `close`, and begins with none."""
        for lane in self._lanes:
            lane.clear()
        self._dirty.clear()
        self._urgency.clear()
        self._failures.clear()
        self._ready = 0
        self._closed = False

    def longest_processing(self) -> float:
        """Returns the seconds since the oldest key in work was taken, or 0 if none is in work.

        The result measures how stuck a worker is.
        """
        if not self._processing:
            return 0.0
        return asyncio.get_running_loop().time() - min(self._processing.values())

    def _due(self, key: K, priority: Priority) -> None:
        del self._timers[key]
        self.add(key, priority)

    def _push(self, key: K) -> None:
        self._lanes[self._urgency[key]].append(key)
        self._ready += 1
        self._wake()

    def _pop(self) -> K:
        """Takes the next key that is ready. There is one."""
        changed, again = self._lanes
        while True:
            if again and (not changed or self._changes >= CHANGES_IN_A_ROW):
                self._changes, key, lane = 0, again.popleft(), Priority.AGAIN
            else:
                self._changes, key, lane = self._changes + 1 if again else 0, changed.popleft(), Priority.CHANGED
            # A key that was raised is taken from the other lane, or has been.
            if key not in self._processing and self._urgency.get(key) == lane:
                del self._urgency[key]
                self._ready -= 1
                return key

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
