"""The shell around the coordinator: its effects go out on the members' links, and what they say comes in."""

from __future__ import annotations

import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional

from dtj_agent.errors import WireError
from dtj_agent.files import lease_file
from dtj_agent.group import effects
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.messages import Message, Now
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop


class Hub:
    """`checkpoint_dir`: where the lease is written, None if there is no volume."""

    def __init__(self, loop: Loop, coordinator: Coordinator, checkpoint_dir: Optional[str], log: Callable[[str], None]) -> None:
        self.coordinator = coordinator
        self._loop = loop
        self._checkpoint_dir = checkpoint_dir
        self._log = log
        self._links: Dict[int, Link] = {}  # of members
        self._wanted: Deque[effects.Effect] = deque()  # by the coordinator, not done yet
        self._busy = False

    def join(self, link: Link, hello: Message) -> None:
        """A member has dialled and said hello."""
        self._links[link.number] = link
        link.on_message = lambda message: self._do(self.coordinator.received(link.number, message, self._now()))

        def closed(reason: str, silence: float) -> None:
            del self._links[link.number]
            self._do(self.coordinator.left(link.number, silence, self._now()))

        link.on_close = closed
        self._do(self.coordinator.joined(link.number, hello, self._now()))

    def second(self) -> None:
        """Heartbeats, and what must be looked at now and then."""
        live = {"type": "beat", "live": self.coordinator.history.live()}
        for link in list(self._links.values()):
            link.send(live)
        self._do(self.coordinator.tick(self._now()))

    def heard_of(self, attempt: int) -> None:
        """A member that has another coordinator knows of `attempt`."""
        self._do(self.coordinator.heard_of(attempt, self._now()))

    def named(self) -> None:
        """Pod 0's name leads to this agent."""
        self._do(self.coordinator.named(self._now()))

    def leased(self, attempt: int, taken: Optional[int], error: Optional[str]) -> None:
        """The volume has answered."""
        self._do(self.coordinator.lease_done(attempt, taken, error, self._now()))

    def _do(self, wanted: List[effects.Effect]) -> None:
        """In order: what comes of one (a dead link found while sending) waits until those before it are done."""
        self._wanted.extend(wanted)
        while self._wanted and not self._busy:
            self._busy = True
            try:
                self._do_one(self._wanted.popleft())
            finally:
                self._busy = False  # else the group would hear nothing but heartbeats from now on

    def _do_one(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Send):
            link = self._links.get(effect.conn)
            if link is not None:
                self._send(link, effect.message)
        elif isinstance(effect, effects.Close):
            link = self._links.get(effect.conn)
            if link is not None:
                link.close("the coordinator let it go")
        elif isinstance(effect, effects.WriteLease):
            lease_file.write(self._loop, self._checkpoint_dir, effect.attempt, self.leased)
        else:
            self._log(effect.text)

    def _send(self, link: Link, message: Message) -> None:
        try:
            link.send(message)
        except WireError as error:  # the fault of what is sent, and not of the link whose message is being answered
            self._log("%s can't be sent: %s" % (message["type"], error))
            link.close(str(error))

    def _now(self) -> Now:
        return Now(self._loop.clock(), time.time())
