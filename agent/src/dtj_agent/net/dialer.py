"""Calls one peer, once: at each address that its name resolves to, until one answers."""

from __future__ import annotations

from typing import Callable, List, Optional

from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.net.stream import Stream
from dtj_agent.settings import Address
from dtj_contract import names


class Dialer:
    """Calls `on_open(link)` with the connection; `on_closed(was_open, reason, silence)` at its end."""

    def __init__(self, loop: Loop, resolver: Resolver, secret: bytes, address: Address) -> None:
        self.on_open: Callable[[Link], None] = lambda link: None
        self.on_closed: Callable[[bool, str, float], None] = lambda was_open, reason, silence: None
        self._loop = loop
        self._resolver = resolver
        self._secret = secret
        self._address = address
        self._link: Optional[Link] = None
        self._candidates: List[Address] = []
        self._stopped = False

    def start(self) -> None:
        self._resolver.resolve(self._address, self._resolved)

    def stop(self) -> None:
        """Closes the connection, if any; nothing is called back from now on."""
        self._stopped = True
        if self._link is not None:
            self._link.close()

    def _resolved(self, found: List[Address], why: str) -> None:
        self._candidates = list(found)
        self._next(why)

    def _next(self, why: str) -> None:
        """Tries the next address. `why`: the reason that the previous one failed."""
        if self._stopped:
            return
        if self._candidates:
            self._connect(self._candidates.pop(0))
        else:
            self.on_closed(False, why, 0.0)

    def _connect(self, address: Address) -> None:
        try:
            stream = Stream.dial(self._loop, address)
        except OSError as error:
            self._next("%s: %s" % (address[0], error.strerror))
            return
        link = self._link = Link(self._loop, stream, self._secret, client=True)
        was_open = False
        patience = self._loop.later(names.CONNECT_SECONDS, lambda: link.close("no answer"))

        def opened() -> None:
            nonlocal was_open
            was_open = True
            patience.cancel()
            self._resolver.remember(self._address, address)
            if not self._stopped:
                self.on_open(link)

        def closed(reason: str, silence: float) -> None:
            patience.cancel()
            self._link = None
            if not was_open:
                self._next("%s: %s" % (address[0], reason))
            elif not self._stopped:
                self.on_closed(True, reason, silence)

        link.on_open, link.on_close = opened, closed
