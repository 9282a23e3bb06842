"""The port that everyone can reach: authentication, and the limits of unproven connections."""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtj_agent.errors import AuthError, WireError
from dtj_agent.group.messages import check
from dtj_agent.net import http_response
from dtj_agent.net.auth import Session
from dtj_agent.net.dialer import Dialer
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.net.server import AgentServer
from dtj_agent.net.stream import Stream
from dtj_contract import names
from dtj_contract.status_token import Mac, status_token
from tests.lib.waiting import TIMEOUT

SECRET = b"5e" * 32


def shake(client: Session, server: Session) -> None:
    server.feed(client.greeting())
    client.feed(server.take_reply())
    server.feed(client.take_reply())


def pair() -> tuple[Session, Session]:
    client, server = Session(SECRET, True), Session(SECRET, False)
    shake(client, server)
    assert client.proven
    assert server.proven
    return client, server


def test_hmac_equals_the_standard_library() -> None:
    for key in (b"k", b"k" * 64, b"k" * 200):
        assert Mac(key).digest(b"data") == hmac.new(key, b"data", hashlib.sha256).digest()
    expected = hmac.new(SECRET, b"status\n1790000000\n{}", hashlib.sha256).hexdigest()
    assert status_token(SECRET, 1790000000.7, "{}") == "1790000000." + expected


def test_messages_pass_both_ways_in_any_pieces() -> None:
    client, server = pair()
    data = client.seal({"n": 1}) + client.seal({"n": "é"})
    assert [message for byte in data for message in server.feed(bytes([byte]))] == [{"n": 1}, {"n": "é"}]
    assert client.feed(server.seal([1]) + server.seal(None)) == [[1], None]


def test_each_side_rejects_a_peer_without_the_secret() -> None:
    client, server = Session(b"wrong" * 8, True), Session(SECRET, False)
    server.feed(client.greeting())
    with pytest.raises(AuthError):
        client.feed(server.take_reply())
    client, server = Session(SECRET, True), Session(SECRET, False)
    server.feed(client.greeting())
    with pytest.raises(AuthError):
        server.feed(b"0" * 64 + b"\n")


FORGERIES: dict[str, Callable[[Session, Session], bytes]] = {
    "a changed byte": lambda c, s: c.seal({"a": 1}).replace(b"1", b"2"),
    "a replayed message": lambda c, s: (line := c.seal({"a": 1})) + line,
    "a reordered message": lambda c, s: (c.seal({"a": 1}), c.seal({"a": 2}))[1],
    "a reflected message": lambda c, s: s.seal({"a": 1}),
    "a message of another session": lambda c, s: pair()[0].seal({"a": 1}),
    "no MAC": lambda c, s: b'{"a":1}\n',
    "an endless line": lambda c, s: b"x" * (names.MAX_FRAME_BYTES + 1),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_forged_message_ends_the_session(forge: Callable[[Session, Session], bytes]) -> None:
    client, server = pair()
    with pytest.raises(WireError):
        server.feed(forge(client, server))


@pytest.mark.parametrize("first", [b"DTJ1 short\n", b"DTJ2 " + b"0" * 32 + b"\n", b"x" * 500])
def test_invalid_greeting_is_rejected(first: bytes) -> None:
    with pytest.raises(WireError):
        Session(SECRET, False).feed(first)


def test_too_long_message_is_an_error_of_the_sender() -> None:
    with pytest.raises(WireError):
        pair()[0].seal("x" * names.MAX_FRAME_BYTES)


BAD_MESSAGES = {
    "not an object": [],
    "no type": {},
    "unknown type": {"type": "drop tables"},
    "a field of another type": {"type": "stopped", "attempt": "1", "port": 1},
    "a bool for a number": {"type": "stopped", "attempt": True, "port": 1},
    "a missing field": {"type": "stopped", "attempt": 1},
}


@pytest.mark.parametrize("message", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_message_without_its_required_fields_is_rejected(message: Any) -> None:
    with pytest.raises(WireError):
        check(message)


# --- the port, over real sockets ------------------------------------------------------------------


class Port:
    def __init__(self) -> None:
        self.loop = Loop()
        self.links: list[Link] = []
        self.on_link: Callable[[Link], None] = self.links.append
        self.rejected: list[str] = []
        pages = {
            "/healthz": lambda request: http_response.text(200, "ok\n"),
            "/who": lambda request: http_response.text(200, request.authorization),
        }
        self.server = AgentServer(self.loop, ("127.0.0.1", 0), SECRET, pages, lambda link, address: self.on_link(link))
        self.server.on_rejected = self.rejected.append
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def talk(self, data: bytes) -> bytes:
        """Returns all bytes that come back until the end."""
        with socket.create_connection(("127.0.0.1", self.server.port), TIMEOUT) as sock:
            sock.sendall(data)
            answer = b""
            while chunk := sock.recv(4096):
                answer += chunk
            return answer

    def close(self) -> None:
        self.loop.soon(self.server.close)
        self.loop.soon(self.loop.stop)
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setattr(names, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(names, "MAX_UNPROVEN_CONNECTIONS", 8)
    port = Port()
    yield port
    port.close()


REQUESTS = {
    "a page": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK", b"ok\n"),
    "a page with a query": (b"GET /healthz?x=1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK", b"ok\n"),
    "a header": (b"GET /who HTTP/1.1\r\nauthorization:  Bearer t \r\n\r\n", b"HTTP/1.1 200 OK", b"Bearer t"),
    "no such page": (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found", b"pages: /healthz /who\n"),
    "another method": (b"POST /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request", b"only GET with HTTP/1.1\n"),
    "not HTTP": (b"GET / FTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request", b"only GET with HTTP/1.1\n"),
}


@pytest.mark.parametrize(("request_", "status", "body"), REQUESTS.values(), ids=REQUESTS)
def test_http_is_served_on_the_same_port(port: Port, request_: bytes, status: bytes, body: bytes) -> None:
    answer = port.talk(request_)
    assert answer.startswith(status)
    assert answer.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize(
    "data",
    [b"", b"G", b"GET /healthz HTTP/1.1\r\n", b"DTJ1 ", b"DTJ1 " + b"0" * 32 + b"\n"],
    ids=["nothing", "a byte", "half a head", "magic", "greeting"],
)
def test_connection_that_sends_too_little_is_dropped_after_a_deadline(port: Port, data: bytes) -> None:
    port.talk(data)  # returns: the server has closed it


@pytest.mark.parametrize("data", [b"\x16\x03\x01", b"GET /" + b"a" * 9000], ids=["TLS", "an endless head"])
def test_connection_that_sends_another_protocol_is_dropped_at_once(port: Port, data: bytes) -> None:
    try:
        assert port.talk(data) == b""
    except ConnectionResetError:
        pass  # closed with bytes of ours unread


def test_unproven_connections_cannot_take_all_room(port: Port) -> None:
    """Beyond the bound the oldest unproven connection is dropped."""
    strangers = [socket.create_connection(("127.0.0.1", port.server.port), TIMEOUT) for _ in range(20)]
    assert strangers[0].recv(1) == b""
    assert port.talk(b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")
    for sock in strangers:
        sock.close()


def test_wrong_secret_is_rejected_and_reported_once(port: Port) -> None:
    for _ in range(3):
        port.talk(b"DTJ1 " + b"0" * 32 + b"\n" + b"0" * 64 + b"\n")
    assert len(port.rejected) == 1
    assert SECRET.decode() not in port.rejected[0]
    assert not port.links


def test_silent_peer_is_lost_after_the_bound(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "PEER_DEAD_SECONDS", 0.2)
    ended = threading.Event()
    reasons: list[str] = []

    def close(reason: str, silence: Any) -> None:
        reasons.append(reason)
        if len(reasons) == 2:
            ended.set()

    def accept(link: Link) -> None:
        link.on_close = close

    def dial() -> None:
        link = Link(port.loop, Stream.dial(port.loop, ("127.0.0.1", port.server.port)), SECRET, client=True)
        link.on_close = close

    port.on_link = accept
    port.loop.soon(dial)
    assert ended.wait(TIMEOUT)
    assert any("no heartbeat" in reason for reason in reasons), reasons


def test_invalid_announced_port_is_an_unreachable_peer(port: Port) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Stream.dial(port.loop, ("127.0.0.1", 70000))


def test_name_that_does_not_resolve_ends_the_call(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    reasons: list[str] = []

    def unknown(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    dialer = Dialer(port.loop, Resolver(port.loop), SECRET, ("digits-0.digits", port.server.port))
    dialer.on_closed = lambda was_open, reason, silence: (reasons.append(reason), ended.set())  # type: ignore[func-returns-value]
    port.loop.soon(dialer.start)
    assert ended.wait(TIMEOUT)
    assert "digits-0.digits does not resolve" in reasons[0]
