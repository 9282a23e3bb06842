"""A non-blocking TCP connection with bounded buffers."""

from __future__ import annotations

import errno
import os
import socket
from typing import Callable

from dtj_agent.net.loop import READ, WRITE, Loop
from dtj_agent.settings import Address
from dtj_contract import names

CHUNK = 64 * 1024


class Stream:
    """Calls `on_data` with received bytes, and once, for whatever reason it ends, `on_close(reason)`."""

    def __init__(self, loop: Loop, sock: socket.socket, connecting: bool = False) -> None:
        self.loop = loop
        self.sock = sock
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_close: Callable[[str], None] = lambda reason: None
        self.on_connect: Callable[[], None] = lambda: None
        self.peer: Address = ("", 0)
        """Numeric address and port of the other side if this side dialled."""
        self.closed = False
        self._connecting = connecting
        self._closing = False  # close once all is written
        self._out = bytearray()
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Linux closes the connection if sent bytes are not acknowledged in this time.
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(names.PEER_DEAD_SECONDS * 1000))
        self._watch()

    @classmethod
    def dial(cls, loop: Loop, address: Address) -> Stream:
        """Begins to connect to a numeric address. Raises OSError if even that fails."""
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            code = sock.connect_ex(address)
        except OverflowError:
            code = errno.EINVAL  # a peer may announce any port
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(code, os.strerror(code))
        stream = cls(loop, sock, connecting=True)
        stream.peer = address
        return stream

    def write(self, data: bytes) -> None:
        if self.closed or self._closing:
            return
        self._out += data
        if len(self._out) > names.MAX_SEND_BUFFER_BYTES:
            self.close("the peer does not read: %d bytes are unsent" % len(self._out))
        elif not self._connecting:
            self._send()

    def close_when_written(self) -> None:
        """Closes the connection after the other side has been sent all that was written."""
        self._closing = True
        if not self._out:
            self.close("")

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.loop.unwatch(self.sock)
        self.sock.close()
        self.on_close(reason)

    @property
    def pending(self) -> int:
        """Bytes that the other side's kernel has not taken yet."""
        return len(self._out)

    def _watch(self) -> None:
        self.loop.watch(self.sock, READ | WRITE if self._out or self._connecting else READ, self._ready)

    def _ready(self, events: int) -> None:
        if self._connecting and events & (READ | WRITE):
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.close(os.strerror(code))
                return
            self._connecting = False
            self.on_connect()
            if not self.closed:
                self._send()
        if events & READ and not self.closed:
            self._receive()
        if events & WRITE and not self.closed and self._out:
            self._send()

    def _receive(self) -> None:
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if data:
            self.on_data(data)
        else:
            self.close("the peer closed the connection")

    def _send(self) -> None:
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(error.strerror or str(error))
        if self._closing and not self._out:
            self.close("")
        if not self.closed:
            self._watch()
