"""A member's link to the coordinator: dialled until it opens, and again whenever it closes."""

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
    """Calls `on_open`, `on_message` with each message, and `on_closed` with the seconds of silence before the end."""

    def __init__(
        self, loop: Loop, resolver: Resolver, secret: bytes, address: Address, log: Callable[[str], None]
    ) -> None:
        self.on_open: Callable[[], None] = lambda: None
        self.on_message: Callable[[Message], None] = lambda message: None
        self.on_closed: Callable[[float], None] = lambda silence: None
        self._loop = loop
        self._log = log
        self._link: Optional[Link] = None
        self._searching_since = loop.clock()
        self._logged_reason = ""
        self._dialer = Dialer(loop, resolver, secret, address)
        self._dialer.on_open = self._opened
        self._dialer.on_closed = self._closed

    def start(self) -> None:
        """Begins to dial."""
        self._dialer.start()

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

    @property
    def address(self) -> Optional[Address]:
        """The coordinator's address; None while there is no link."""
        return None if self._link is None else self._link.peer_address

    def hint(self, address: Address) -> None:
        """Dials `address` next."""
        self._dialer.hint(address)

    def move(self, address: Address) -> None:
        """Leaves the present coordinator, if it is elsewhere, for the coordinator at `address`."""
        if self._link is not None and self._link.peer_address == address:
            return
        if self._link is not None:
            self._link.close("the coordinator is at %s now" % address[0])
        self._dialer.hint(address)

    def _opened(self, link: Link) -> None:
        self._link = link
        link.on_message = lambda message: self.on_message(message)
        self.on_open()

    def _closed(self, was_open: bool, reason: str, silence: float) -> None:
        if was_open:
            self._link = None
            self.on_closed(silence)
            self._searching_since = self._loop.clock()
        # A name that does not resolve yet, or an address that does not answer, is normal for a while.
        is_patient = self._loop.clock() - self._searching_since < names.PEER_DEAD_SECONDS
        if (not is_patient or "secret" in reason) and reason != self._logged_reason:
            self._logged_reason = reason
            self._log("can't reach the coordinator: " + reason)
