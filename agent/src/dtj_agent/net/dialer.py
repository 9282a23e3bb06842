"""Calls one peer until it answers: at the last known address first, then by name."""

from __future__ import annotations

import os
from typing import Callable, List, Optional

from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop, Timer
from dtj_agent.net.resolver import Resolver
from dtj_agent.net.stream import Stream
from dtj_agent.settings import Address
from dtj_contract import names


def jittered(seconds: float) -> float:
    """Returns a random time from half of `seconds` to all of it, so that a thousand agents don't call in step."""
    return seconds * (0.5 + int.from_bytes(os.urandom(2), "big") / 131072)


class Dialer:
    """Calls `on_open(link)` with each connection, `on_closed(was_open, reason, silence)` at its end, and dials again.

    `once`: dials each address once, and not again.
    """

    def __init__(self, loop: Loop, resolver: Resolver, secret: bytes, address: Address, once: bool = False) -> None:
        self.on_open: Callable[[Link], None] = lambda link: None
        self.on_closed: Callable[[bool, str, float], None] = lambda was_open, reason, silence: None
        self._loop = loop
        self._resolver = resolver
        self._secret = secret
        self._address = address
        self._once = once
        self._hint: Optional[Address] = None
        self._pause = names.RETRY_MIN_SECONDS
        self._timer: Optional[Timer] = None
        self._link: Optional[Link] = None
        self._round = 0  # late resolver answers have an older one
        self._resolved_in_round = False
        self._diverted = False  # to a hint, in this round
        self._candidates: List[Address] = []
        self._stopped = True

    def start(self) -> None:
        """Dials until `stop`."""
        if self._stopped:
            self._stopped = False
            self._pause = names.RETRY_MIN_SECONDS
            self._call_in(0.0)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.close()

    def hint(self, address: Address) -> None:
        """Tries `address` at once, whatever DNS answers: DNS may return the old address for a while.

        Many peers may give the same hint just when the coordinator is slow to answer. Therefore a
        call to the hinted address continues, and in each round at most one call to another address is given
        up for a hint.
        """
        is_dialling = self._link is not None and not self._link.is_open
        if is_dialling and self._link is not None and self._link.peer_address == address:
            return
        self._hint = address
        self._pause = names.RETRY_MIN_SECONDS
        if is_dialling and self._link is not None and not self._diverted:
            self._diverted = True
            # The address that is being tried is out of date; the hint is next.
            self._link.close("a newer address is known")
        elif self._link is None and not self._stopped:
            self._call_in(0.0)

    def _call_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(seconds, self._call)

    def _call(self) -> None:
        if not self._stopped and self._link is None:
            self._round += 1
            self._resolved_in_round = self._diverted = False
            self._candidates = []
            self._next("no address")

    def _next(self, why: str) -> None:
        """Tries the next address of this round. `why`: the reason that the previous address failed."""
        if self._stopped:
            return
        if self._hint is not None:
            # A hint is used once: a coordinator that is there will announce itself again.
            address, self._hint = self._hint, None
            self._connect(address)
        elif self._candidates:
            self._connect(self._candidates.pop(0))
        elif not self._resolved_in_round:
            self._resolved_in_round = True
            current = self._round
            self._resolver.resolve(self._address, lambda found, problem: self._resolved(current, found, problem or why))
        else:
            self.on_closed(False, why, 0.0)
            if not self._once and not self._stopped:
                self._back_off()

    def _back_off(self) -> None:
        self._call_in(jittered(self._pause))
        self._pause = min(self._pause * 2, names.RETRY_MAX_SECONDS)

    def _resolved(self, of_round: int, found: List[Address], why: str) -> None:
        if of_round == self._round and self._link is None:
            self._candidates = list(found)
            self._next(why)

    def _connect(self, address: Address) -> None:
        try:
            stream = Stream.dial(self._loop, address)
        except OSError as error:
            self._next("%s: %s" % (address[0], error.strerror))
            return
        link = self._link = Link(self._loop, stream, self._secret, client=True)
        was_open, opened_at = False, 0.0
        patience = self._loop.later(names.CONNECT_SECONDS, lambda: link.close("no answer"))

        def opened() -> None:
            nonlocal was_open, opened_at
            was_open, opened_at = True, self._loop.clock()
            patience.cancel()
            self.on_open(link)

        def closed(reason: str, silence: float) -> None:
            patience.cancel()
            self._link = None
            if not was_open:
                self._next("%s: %s" % (address[0], reason))
                return
            # A link that closes as soon as it opens means that the peer rejects this agent: keep
            # the long pause then.
            if self._loop.clock() - opened_at >= names.RETRY_MAX_SECONDS:
                self._pause = names.RETRY_MIN_SECONDS
            self.on_closed(True, reason, silence)
            if not self._stopped and not self._once:
                self._back_off()

        link.on_open, link.on_close = opened, closed
