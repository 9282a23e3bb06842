"""The rendezvous store of one attempt, in a process of its own: it outlives every rank, as torchrun's agent store does.

The listening sockets come over standard input, a socket, when an attempt needs them. The process
exits when its standard input ends: the agent holds the other end, so the store never outlives the
agent, however the agent dies.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from typing import Dict, List

from dtj_agent.net.loop import READ, WRITE, Loop
from dtj_agent.store.key_store import KeyStore, ProtocolError, StoreClient

CHUNK = 256 * 1024
ACCEPTS_AT_ONCE = 64
MAX_LISTENERS = 4
PAUSE_SECONDS = 0.1  # after running out of file descriptors


class Connection:
    """A rank's connection. Reads nothing while an answer waits to be read, so that memory is bounded."""

    def __init__(self, server: StoreServer, sock: socket.socket) -> None:
        self.client = StoreClient(server.store)
        self._server = server
        self._sock = sock
        self._writing = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        server.loop.watch(sock, READ, self._ready)

    def send(self) -> None:
        """Sends the client's pending output, now or as soon as the connection accepts it."""
        try:
            while self.client.out:
                del self.client.out[: self._sock.send(self.client.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        if bool(self.client.out) != self._writing:
            self._writing = not self._writing
            self._server.loop.watch(self._sock, WRITE if self._writing else READ, self._ready)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self.send()
            return
        try:
            data = self._sock.recv(CHUNK)
            if data:
                self.client.feed(data)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            data = b""
        if data:
            self._server.answer(self)
        else:
            self._close()

    def _close(self) -> None:
        self._server.loop.unwatch(self._sock)
        self._sock.close()
        self._server.forget(self)


class StoreServer:
    """Serves one KeyStore on some listening sockets."""

    def __init__(self, loop: Loop, listeners: List[socket.socket]) -> None:
        self.loop = loop
        self.store = KeyStore()
        self._connections: Dict[StoreClient, Connection] = {}
        self._listeners = listeners
        for listener in listeners:
            listener.setblocking(False)
        self._listen()

    def answer(self, connection: Connection) -> None:
        """Sends the answers to this client, and to the clients that its requests have woken."""
        woken, self.store.woken = self.store.woken, set()
        for client in [connection.client, *woken]:
            if client in self._connections:
                self._connections[client].send()

    def forget(self, connection: Connection) -> None:
        self.store.forget(connection.client)
        self._connections.pop(connection.client, None)

    def _listen(self) -> None:
        for listener in self._listeners:
            self.loop.watch(listener, READ, lambda events, listener=listener: self._accept(listener))  # type: ignore[misc]

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                # Out of file descriptors: waiting connections stay in the kernel's queue.
                for each in self._listeners:
                    self.loop.unwatch(each)
                self.loop.later(PAUSE_SECONDS, self._listen)
                return
            connection = Connection(self, sock)
            self._connections[connection.client] = connection


def main() -> None:
    """Serves until standard input ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The signal is meant for the ranks, which may use the store while they end.
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with socket.socket(fileno=os.dup(0)) as agent:
        data, descriptors, _, _ = socket.recv_fds(agent, 1, MAX_LISTENERS)
    if not data:
        os._exit(0)
    loop = Loop()
    StoreServer(loop, [socket.socket(fileno=descriptor) for descriptor in descriptors])
    loop.watch(0, READ, lambda events: os._exit(0))
    loop.run()
