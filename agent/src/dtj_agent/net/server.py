"""The listening socket: distinguishes agents from HTTP requests by their first bytes, and bounds the unproven ones."""

from __future__ import annotations

import socket
from collections import Counter
from typing import Callable, Dict, Mapping, Optional

from dtj_agent.errors import SettingsError
from dtj_agent.net import http_response
from dtj_agent.net.auth import MAGIC
from dtj_agent.net.http_connection import HttpConnection
from dtj_agent.net.link import Link
from dtj_agent.net.loop import READ, Loop
from dtj_agent.net.stream import Stream
from dtj_agent.settings import Address
from dtj_contract import names

ACCEPT_PAUSE_SECONDS = 0.1
ACCEPTS_AT_ONCE = 64
"""Connections that one turn of the loop accepts: a whole group may dial while its links are busy."""


class UnprovenConnection:
    """A connection that has not proven that it holds the secret, or has sent no whole request."""

    def __init__(self, stream: Stream, source: str) -> None:
        self.stream = stream
        self.source = source
        self.link: Optional[Link] = None

    @property
    def has_greeted(self) -> bool:
        """Whether it has sent an agent's whole greeting."""
        return self.link is not None and self.link.has_greeted


class AgentServer:
    """Calls `on_link(link, address)` for every agent that dials; answers HTTP requests with `pages`.

    `peers`: how many agents may dial at once.
    """

    def __init__(
        self,
        loop: Loop,
        listen: Address,
        secret: bytes,
        pages: Mapping[str, http_response.Page],
        on_link: Callable[[Link, str], None],
        peers: int = 0,
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._pages = pages
        self._on_link = on_link
        self.on_rejected: Callable[[str], None] = lambda text: None
        self._rejections = 0
        self._room = names.MAX_UNPROVEN_CONNECTIONS + 2 * peers
        self._unproven: Dict[int, UnprovenConnection] = {}  # in order of arrival
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and listen[0] == "::":
            # IPv4 peers of a dual-stack cluster connect too.
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            self._socket.bind(listen)
        except OSError as error:
            self._socket.close()
            why = "%s: can't listen on %s:%d (%s)" % (names.ENV_LISTEN, listen[0], listen[1], error.strerror)
            raise SettingsError(why) from error
        self._socket.listen(max(1024, 2 * peers))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        loop.watch(self._socket, READ, self._accept)

    def close(self) -> None:
        self._loop.unwatch(self._socket)
        self._socket.close()

    def _accept(self, _events: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of file descriptors, or the caller has hung up. Try again soon, not in a busy loop.
                self._loop.unwatch(self._socket)
                self._loop.later(ACCEPT_PAUSE_SECONDS, lambda: self._loop.watch(self._socket, READ, self._accept))
                return
            self._add(sock, address)

    def _add(self, sock: socket.socket, address: Address) -> None:
        stream = Stream(self._loop, sock)
        if len(self._unproven) >= self._room:
            self._to_drop().stream.close("too many connections that send nothing")
        key = id(stream)
        unproven = self._unproven[key] = UnprovenConnection(stream, str(address[0]))
        buffer = bytearray()
        deadline = self._loop.later(names.HANDSHAKE_SECONDS, lambda: stream.close("the peer sent nothing"))

        def settled() -> None:
            deadline.cancel()
            self._unproven.pop(key, None)

        def data(chunk: bytes) -> None:
            buffer.extend(chunk)
            if buffer.startswith(MAGIC[: len(buffer)]) and len(buffer) < len(MAGIC):
                return
            if buffer.startswith(MAGIC):
                self._hand_over(unproven, bytes(buffer), settled)
            elif b"\r\n\r\n" in buffer:
                self._serve(stream, bytes(buffer), settled)
            elif len(buffer) > names.MAX_HTTP_BYTES or not buffer.startswith(http_response.METHOD[: len(buffer)]):
                stream.close("not an agent and not a GET request")

        stream.on_data = data
        stream.on_close = lambda reason: settled()

    def _serve(self, stream: Stream, request: bytes, settled: Callable[[], None]) -> None:
        """Serves an HTTP request. A connection that waits has proven itself with the job's token."""
        connection = HttpConnection(stream, self._pages, settled)
        connection.received(request)
        if connection.is_listening:
            settled()

    def _to_drop(self) -> UnprovenConnection:
        """Returns the connection to drop: from a source with too many first, then not greeted, then the oldest."""
        held = Counter(unproven.source for unproven in self._unproven.values())
        greedy = {source for source, count in held.items() if count > names.MAX_UNPROVEN_OF_SOURCE}
        return min(self._unproven.values(), key=lambda unproven: (unproven.source not in greedy, unproven.has_greeted))

    def _hand_over(self, unproven: UnprovenConnection, first: bytes, settled: Callable[[], None]) -> None:
        """Hands the connection over to a link; the connection still counts as unproven until the link opens."""
        stream, address = unproven.stream, unproven.source
        link = unproven.link = Link(self._loop, stream, self._secret, client=False)
        closed = stream.on_close

        def opened() -> None:
            settled()
            stream.on_close = closed
            self._on_link(link, address)

        def ended(reason: str) -> None:
            settled()
            if "secret" in reason:
                self._rejected(address, reason)
            closed(reason)

        link.on_open = opened
        stream.on_close = ended
        stream.on_data(first)

    def _rejected(self, address: str, reason: str) -> None:
        """Reports the first rejected peer only, because a stranger could fill the log."""
        self._rejections += 1
        if self._rejections == 1:
            self.on_rejected("rejected %s: %s (logged once)" % (address, reason))
