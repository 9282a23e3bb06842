"""The listening socket: tells HTTP requests and agents apart by their first bytes, and bounds those that say neither."""

from __future__ import annotations

import socket
from collections import Counter
from typing import Callable, Dict, Mapping, Optional

from dtj_agent.errors import SettingsError
from dtj_agent.net import http_response
from dtj_agent.net.auth import MAGIC
from dtj_agent.net.link import Link
from dtj_agent.net.loop import READ, Loop
from dtj_agent.net.stream import Stream
from dtj_agent.settings import Address
from dtj_contract import names

ACCEPT_PAUSE_SECONDS = 0.1


class UnprovenConnection:
    """A connection that has not proven yet that it has the secret."""

    def __init__(self, stream: Stream, source: str) -> None:
        self.stream = stream
        self.source = source
        self.link: Optional[Link] = None

    @property
    def has_greeted(self) -> bool:
        """It has sent an agent's whole greeting."""
        return self.link is not None and self.link.has_greeted


class AgentServer:
    """`on_link(link)` for every agent that dials; `pages` answer everyone else."""

    def __init__(
        self,
        loop: Loop,
        listen: Address,
        secret: bytes,
        pages: Mapping[str, http_response.Page],
        on_link: Callable[[Link, str], None],
        peers: int = 0,
    ) -> None:
        """`peers`: how many agents may dial at once."""
        self._loop = loop
        self._secret = secret
        self._pages = pages
        self._on_link = on_link
        self.on_refused: Callable[[str], None] = lambda text: None
        self._refusals = 0
        self._room = names.MAX_UNPROVEN_CONNECTIONS + 2 * peers
        self._unproven: Dict[int, UnprovenConnection] = {}  # in order of arrival
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and listen[0] == "::":
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 peers of a dual-stack cluster too
        try:
            self._socket.bind(listen)
        except OSError as error:
            self._socket.close()
            why = "%s: can't listen on %s:%d (%s)" % (names.ENV_LISTEN, listen[0], listen[1], error.strerror)
            raise SettingsError(why) from error
        self._socket.listen(1024)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        loop.watch(self._socket, READ, self._accept)

    def close(self) -> None:
        self._loop.unwatch(self._socket)
        self._socket.close()

    def _accept(self, _events: int) -> None:
        try:
            sock, address = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:  # out of file descriptors, or the caller has gone again: look again soon, not in a busy loop
            self._loop.unwatch(self._socket)
            self._loop.later(ACCEPT_PAUSE_SECONDS, lambda: self._loop.watch(self._socket, READ, self._accept))
            return
        stream = Stream(self._loop, sock)
        if len(self._unproven) >= self._room:
            self._least().stream.close("too many connections that say nothing")
        key = id(stream)
        stranger = self._unproven[key] = UnprovenConnection(stream, str(address[0]))
        buffer = bytearray()
        deadline = self._loop.later(names.HANDSHAKE_SECONDS, lambda: stream.close("it said nothing"))

        def settled() -> None:
            deadline.cancel()
            self._unproven.pop(key, None)

        def data(chunk: bytes) -> None:
            buffer.extend(chunk)
            if buffer.startswith(MAGIC[: len(buffer)]) and len(buffer) < len(MAGIC):
                return
            if buffer.startswith(MAGIC):
                self._agent(stranger, bytes(buffer), settled)
            elif buffer.endswith(b"\r\n\r\n") or b"\r\n\r\n" in buffer:
                stream.write(http_response.respond(bytes(buffer).partition(b"\r\n\r\n")[0], self._pages))
                stream.close_when_written()
            elif len(buffer) > names.MAX_HTTP_BYTES or not buffer.startswith(http_response.METHOD[: len(buffer)]):
                stream.close("neither an agent nor a GET request")

        stream.on_data = data
        stream.on_close = lambda reason: settled()

    def _least(self) -> UnprovenConnection:
        """Returns whom to drop: of a source that has too many, before whom has not greeted yet, before the oldest."""
        held = Counter(stranger.source for stranger in self._unproven.values())
        greedy = {source for source, count in held.items() if count > names.MAX_UNPROVEN_OF_SOURCE}
        return min(self._unproven.values(), key=lambda stranger: (stranger.source not in greedy, stranger.has_greeted))

    def _agent(self, stranger: UnprovenConnection, first: bytes, settled: Callable[[], None]) -> None:
        """Hand the connection over to a link; until it has proven itself it still counts among the strangers."""
        stream, address = stranger.stream, stranger.source
        link = stranger.link = Link(self._loop, stream, self._secret, client=False)
        closed = stream.on_close

        def opened() -> None:
            settled()
            stream.on_close = closed
            self._on_link(link, address)

        def ended(reason: str) -> None:
            settled()
            if "secret" in reason:
                self._refused(address, reason)
            closed(reason)

        link.on_open = opened
        stream.on_close = ended
        stream.on_data(first)

    def _refused(self, address: str, reason: str) -> None:
        """Said once, or a stranger could fill the log."""
        self._refusals += 1
        if self._refusals == 1:
            self.on_refused("refused %s: %s (said once)" % (address, reason))
