"""Slow handshakes: hints and other agents' handshakes don't break them."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from dtj_agent.net import http_response
from dtj_agent.net.auth import Session
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.server import AgentServer
from dtj_contract import names

SECRET = b"5e" * 32
PATIENCE = 90.0


class Running:
    """A loop in a thread, and a server on it."""

    def __init__(self, peers: int) -> None:
        self.loop = Loop()
        self.links: list[Link] = []
        self.linked = threading.Event()
        pages = {"/healthz": lambda request: http_response.text(200, "ok\n")}
        self.server = AgentServer(self.loop, ("127.0.0.1", 0), SECRET, pages, self._link, *([peers] if peers else []))
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def _link(self, link: Link, address: str) -> None:
        self.links.append(link)
        self.linked.set()

    def do(self, what: Callable[[], object]) -> None:
        """Runs it in the loop's thread, and returns when it has run."""
        done = threading.Event()
        self.loop.soon(lambda: (what(), done.set()))  # type: ignore[func-returns-value, arg-type, return-value]
        assert done.wait(PATIENCE)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), PATIENCE, (source, 0))

    def close(self) -> None:
        self.do(self.server.close)
        self.loop.soon(self.loop.stop)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture(params=[0], ids=[""])
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(names, "HANDSHAKE_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(names, "CONNECT_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(names, "MAX_UNPROVEN_CONNECTIONS", 8)
    running = Running(request.param)
    yield running
    running.close()


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    """Coordinators that accept and send nothing by themselves."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    for listener in found:
        listener.settimeout(PATIENCE)
    yield found
    for listener in found:
        listener.close()


def answer(conn: socket.socket) -> None:
    """Completes the coordinator's side of the handshake."""
    session = Session(SECRET, client=False)
    conn.settimeout(PATIENCE)
    while not session.proven:
        data = conn.recv(4096)
        assert data, "the caller has given up"
        session.feed(data)
        conn.sendall(session.take_reply())


def greet(running: Running, source: str = "127.0.0.1") -> tuple[socket.socket, Session]:
    """Connects a caller that has greeted and got its answer, but has not proven the secret."""
    session = Session(SECRET, client=True)
    sock = running.connect(source)
    sock.sendall(session.greeting())
    session.feed(sock.recv(4096))
    return sock, session


def prove(running: Running, sock: socket.socket, session: Session) -> None:
    running.linked.clear()
    sock.sendall(session.take_reply())
    assert running.linked.wait(PATIENCE)


def close(*socks: socket.socket) -> None:
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("running", [20], indirect=True, ids=["20 peers"])
def test_all_members_may_handshake_at_once(running: Running) -> None:
    callers = [greet(running) for _ in range(40)]
    for sock, session in callers:
        prove(running, sock, session)
    assert len(running.links) == 40
    close(*[sock for sock, _ in callers])


def test_connection_that_has_not_greeted_is_dropped_first(running: Running) -> None:
    caller, session = greet(running)
    silent = [running.connect() for _ in range(8)]
    assert silent[0].recv(1) == b""
    prove(running, caller, session)
    close(caller, *silent)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on loopback")
def test_one_address_cannot_crowd_out_the_others(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_UNPROVEN_OF_SOURCE", 2)
    silent = running.connect()
    greedy = [greet(running, "127.0.0.2")[0] for _ in range(12)]
    assert greedy[0].recv(1) == b""
    silent.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert silent.recv(4096).startswith(b"HTTP/1.1 200")
    close(silent, *greedy)
