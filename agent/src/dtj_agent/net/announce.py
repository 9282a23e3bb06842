"""Calls peers by name, gives them this agent's address, and asks them for the leader.

DNS may answer with the old address of a replaced pod for seconds. A leader therefore calls every
member that it misses, and an agent that finds no leader asks its peers for one.
"""

from __future__ import annotations

from typing import Callable, Dict, List

from dtj_agent.group.messages import Message
from dtj_agent.net.dialer import Dialer
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.settings import AgentSettings
from dtj_contract import names


class Announcer:
    """Calls back when a call ends: `on_answer(ordinal, answer)`, or `on_failed(ordinal, reason)`."""

    def __init__(self, loop: Loop, resolver: Resolver, settings: AgentSettings) -> None:
        self.on_answer: Callable[[int, Message], None] = lambda ordinal, answer: None
        self.on_failed: Callable[[int, str], None] = lambda ordinal, reason: None
        self._loop = loop
        self._resolver = resolver
        self._settings = settings
        self._calls: Dict[int, Dialer] = {}  # in progress, by ordinal
        self._last = -1
        """The peer that was called last: the next round begins after it."""

    def call(self, ordinals: List[int], message: Message) -> None:
        """Calls these peers, at most ANNOUNCE_AT_ONCE at a time and the rest in a later round."""
        last = self._last
        for ordinal in sorted(ordinals, key=lambda ordinal: (ordinal <= last, ordinal)):
            if ordinal == self._settings.ordinal or ordinal in self._calls:
                continue
            if len(self._calls) < names.ANNOUNCE_AT_ONCE:
                self._last = ordinal
                self._call(ordinal, message)

    def _call(self, ordinal: int, message: Message) -> None:
        call = Dialer(self._loop, self._resolver, self._settings.secret, self._settings.peer(ordinal))
        self._calls[ordinal] = call

        def opened(link: Link) -> None:
            link.on_message = answered
            link.send(message)

        def answered(answer: Message) -> None:
            ended()
            if answer["type"] == "known":
                self.on_answer(ordinal, answer)
            else:
                self.on_failed(ordinal, "an agent of another version")

        def closed(was_open: bool, reason: str, silence: float) -> None:
            ended()
            self.on_failed(ordinal, reason)

        def ended() -> None:
            self._calls.pop(ordinal, None)
            call.stop()

        call.on_open, call.on_closed = opened, closed
        call.start()
