"""The shell around the coordinator, with real connections: carries out effects in the coordinator's order."""

from __future__ import annotations

import socket
import struct
from typing import Any

from dtj_agent.coordinator_shell import CoordinatorShell
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.history import History
from dtj_agent.group.messages import Now
from dtj_agent.group.rules import Rules
from dtj_agent.net.auth import Session
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.stream import Stream
from tests.unit.agent.coordinator_harness import CoordinatorHarness

SECRET = b"5e" * 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


class Caller:
    """The other end of a link: a member that only listens."""

    def __init__(self, loop: Loop) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.sock = socket.create_connection(listener.getsockname())
        self.sock.settimeout(60)
        self.link = Link(loop, Stream(loop, listener.accept()[0]), SECRET, client=False)
        listener.close()
        self._session = Session(SECRET, client=True)
        self.sock.sendall(self._session.greeting())
        while not self._session.proven:
            loop.run_once()
            self._session.feed(self.sock.recv(65536))
        self.sock.sendall(self._session.take_reply())
        while not self.link.is_open:
            loop.run_once()

    def heard(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self._session.feed(self.sock.recv(65536))
        return messages


def test_dead_link_found_while_starting_stops_the_members_that_started() -> None:
    """The stop must not overtake the start: a member that starts after its stop would run for ever, unknown."""
    loop = Loop()
    coordinator = Coordinator(Rules("uid", 2, 2), History(), None, Now(loop.clock(), 0.0))
    shell = CoordinatorShell(loop, coordinator, None, print)
    callers = [Caller(loop), Caller(loop)]
    for ordinal, caller in enumerate(callers):
        shell.join(caller.link, CoordinatorHarness(2).hello(ordinal))
    callers[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    callers[0].sock.close()
    shell.leased(1, None, None)
    received = [message["type"] for message in callers[1].heard() if message["type"] in ("start", "stop")]
    assert received == ["start", "stop"]
    callers[1].link.close()
    callers[1].sock.close()
