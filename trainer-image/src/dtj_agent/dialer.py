"""Calls one peer until it answers: by name, and at the address where it was last heard of, in turn."""

from __future__ import annotations

import os
from typing import Callable, List, Optional

from dtj_agent import names
from dtj_agent.env import Address
from dtj_agent.link import Link
from dtj_agent.loop import Loop, Timer
from dtj_agent.resolver import Resolver
from dtj_agent.stream import Stream


def jittered(seconds: float) -> float:
    """Between half and the whole of it, so that a thousand agents don't call in step."""
    return seconds * (0.5 + int.from_bytes(os.urandom(2), "big") / 131072)


class Dialer:
    """`on_open(link)` with each connection; when it ends, `on_closed(was open, reason, silence)` and it calls again by itself."""

    def __init__(self, loop: Loop, resolver: Resolver, secret: bytes, address: Address, once: bool = False) -> None:
        self.on_open: Callable[[Link], None] = lambda link: None
        self.on_closed: Callable[[bool, str, float], None] = lambda was_open, reason, silence: None
        self.hint: Optional[Address] = None
        """Where the peer said it is; tried before the name, which DNS may answer with an old address for a while."""
        self._loop = loop
        self._resolver = resolver
        self._secret = secret
        self._address = address
        self._once = once  # one round through the addresses, no second call
        self._pause = names.RETRY_MIN_SECONDS
        self._timer: Optional[Timer] = None
        self._link: Optional[Link] = None
        self._candidates: List[Address] = []
        self._busy = False  # resolving or connecting
        self._stopped = True

    def start(self) -> None:
        """Call until `stop`."""
        if self._stopped:
            self._stopped = False
            self._pause = names.RETRY_MIN_SECONDS
            self._again(0.0)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.close()

    def hurry(self) -> None:
        """There is news of the peer: call now."""
        self._pause = names.RETRY_MIN_SECONDS
        if not self._busy and not self._stopped and self._link is None:
            self._again(0.0)

    def _again(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(seconds, self._call)

    def _call(self) -> None:
        if self._stopped or self._busy or self._link is not None:
            return
        self._busy = True
        self._candidates = [self.hint] if self.hint is not None else []
        self._resolver.resolve(self._address, self._resolved)

    def _resolved(self, found: List[Address], why: str) -> None:
        if self._stopped:
            self._busy = False
            return
        self._candidates += [address for address in found if address not in self._candidates]
        self._next(why or "no address")

    def _next(self, why: str) -> None:
        if not self._candidates:
            self._busy = False
            self.on_closed(False, why, 0.0)
            if not self._stopped and not self._once:
                self._again(jittered(self._pause))
                self._pause = min(self._pause * 2, names.RETRY_MAX_SECONDS)
            return None
        address = self._candidates.pop(0)
        try:
            stream = Stream.dial(self._loop, address)
        except OSError as error:
            return self._next("%s: %s" % (address[0], error.strerror))
        link = self._link = Link(self._loop, stream, self._secret, client=True)
        patience = self._loop.later(names.CONNECT_SECONDS, lambda: None if link.is_open else link.close("no answer"))

        def opened() -> None:
            patience.cancel()
            self._busy, self._candidates = False, []
            self._pause = names.RETRY_MIN_SECONDS
            self.on_open(link)

        def closed(reason: str, silence: float) -> None:
            patience.cancel()
            self._link = None
            if self._busy:
                return self._next("%s: %s" % (address[0], reason))
            self.on_closed(True, reason, silence)
            if not self._stopped and not self._once:
                self._again(jittered(names.RETRY_MIN_SECONDS))
            return None

        link.on_open, link.on_close = opened, closed
        return None
