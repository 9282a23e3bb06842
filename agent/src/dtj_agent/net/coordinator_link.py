"""A member's link to the coordinator."""

from __future__ import annotations

from typing import Callable, Optional

from dtj_agent.group.messages import Message
from dtj_agent.net.dialer import Dialer
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.settings import Address
from dtj_contract import names


class CoordinatorLink:
    """Calls `on_open`, `on_message` with each message, `on_closed` with the seconds of silence before
    the end, and `on_ended(was_open)` if it was not this side that left.
    """

    def __init__(self, loop: Loop, resolver: Resolver, secret: bytes, log: Callable[[str], None]) -> None:
        self.on_open: Callable[[], None] = lambda: None
        self.on_message: Callable[[Message], None] = lambda message: None
        self.on_closed: Callable[[float], None] = lambda silence: None
        self.on_ended: Callable[[bool], None] = lambda was_open: None
        self._loop = loop
        self._resolver = resolver
        self._secret = secret
        self._log = log
        self._link: Optional[Link] = None
        self._dialer: Optional[Dialer] = None
        self._lost_at = loop.clock()
        self._logged_reason = ""

    def dial(self, address: Address) -> None:
        """Leaves the present coordinator, if any, for the one at `address`."""
        self.leave()
        dialer = self._dialer = Dialer(self._loop, self._resolver, self._secret, address)
        dialer.on_open, dialer.on_closed = self._opened, self._closed
        dialer.start()

    def leave(self) -> None:
        """Closes the link, or ends the attempt to open one."""
        if self._dialer is not None:
            self._dialer.stop()
            self._dialer = None
        if self._link is not None:
            self._link, self._lost_at = None, self._loop.clock()
            self.on_closed(0.0)

    def send(self, message: Message) -> None:
        """Sends a message; drops it while there is no link."""
        if self._link is not None:
            self._link.send(message)

    @property
    def is_open(self) -> bool:
        return self._link is not None

    @property
    def pending(self) -> int:
        """Bytes that the coordinator's kernel has not taken yet."""
        return 0 if self._link is None else self._link.pending

    def _opened(self, link: Link) -> None:
        self._link = link
        link.on_message = lambda message: self.on_message(message) if self._link is link else None
        self.on_open()

    def _closed(self, was_open: bool, reason: str, silence: float) -> None:
        self._dialer = None
        if was_open:
            self._link, self._lost_at = None, self._loop.clock()
            self.on_closed(silence)
        # A name that does not resolve yet, or an address that does not answer, is normal for a while.
        is_patient = self._loop.clock() - self._lost_at < names.PEER_DEAD_SECONDS
        if (not is_patient or "secret" in reason) and reason != self._logged_reason:
            self._logged_reason = reason
            self._log("can't reach the coordinator: " + reason)
        if self._dialer is None:  # the member's reaction may have been to dial
            self.on_ended(was_open)
