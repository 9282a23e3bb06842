"""Calls peers by name and announces this agent's address to them, when it starts and while a peer is missing.

DNS may answer with the old address of a replaced pod for seconds. The coordinator therefore calls
every member that it misses, and a member that can't find the coordinator asks a few peers for the
coordinator's address.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List

from dtj_agent.group.messages import Message
from dtj_agent.net.dialer import Dialer
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.settings import Address, AgentSettings
from dtj_contract import names


class Announcer:
    """Calls back when a peer answers: `on_direction(address)` with the coordinator's address as the
    peer knows it, and `on_attempt(number)` with the greatest attempt that the peer knows of.
    """

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        settings: AgentSettings,
        incarnation: str,
        port: int,
        on_direction: Callable[[Address], None],
    ) -> None:
        self.on_attempt: Callable[[int], None] = lambda attempt: None
        self._loop = loop
        self._resolver = resolver
        self._settings = settings
        self._on_direction = on_direction
        self._calls: Dict[int, Dialer] = {}  # in progress, by ordinal
        self._message: Message = {
            "type": "announce", "uid": settings.uid, "ordinal": settings.ordinal, "incarnation": incarnation,
            "address": settings.address, "agentPort": port,
            "started": 0,
        }  # fmt: skip

    def call(self, ordinals: List[int], started: int = 0) -> None:
        """Calls these peers, at most ANNOUNCE_AT_ONCE at a time and the rest in a later round.

        `started`: see `Member.follows`.
        """
        self._message["started"] = started
        for ordinal in ordinals:
            if ordinal == self._settings.ordinal or ordinal in self._calls:
                continue
            if len(self._calls) < names.ANNOUNCE_AT_ONCE:
                self._call(ordinal)

    def call_some(self) -> None:
        """Calls a few random peers, to ask for the coordinator's address."""
        others = [ordinal for ordinal in range(1, self._settings.peer_count) if ordinal != self._settings.ordinal]
        while len(others) > names.ANNOUNCE_FANOUT:
            others.pop(int.from_bytes(os.urandom(4), "big") % len(others))
        self.call(others)

    def _call(self, ordinal: int) -> None:
        call = Dialer(self._loop, self._resolver, self._settings.secret, self._settings.peer(ordinal), once=True)
        self._calls[ordinal] = call

        def opened(link: Link) -> None:
            link.on_message = lambda message: answered(link, message)
            link.send(self._message)

        def answered(link: Link, message: Message) -> None:
            known, attempt = message.get("coordinator"), message.get("attempt")
            link.close()
            if isinstance(attempt, int):
                self.on_attempt(attempt)
            if isinstance(known, list) and len(known) == 2 and isinstance(known[0], str) and isinstance(known[1], int):
                self._on_direction((known[0], known[1]))

        def closed(was_open: bool, reason: str, silence: float) -> None:
            self._calls.pop(ordinal, None)
            call.stop()

        call.on_open, call.on_closed = opened, closed
        call.start()
