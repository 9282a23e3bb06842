"""The agent's side of the rendezvous store: listens from the start of an attempt, and starts the server when needed.

The first connection starts the server process, so a script without torch.distributed never costs
that process. Once a store was needed, the next attempt's server process is started ahead, and waits.
The port is bound all the time, so no other program can take it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional

from dtj_agent.net.loop import READ, Loop
from dtj_agent.workers.supervisor import OWN_SESSION

BACKLOG = 4096
TRIES = 5
RETRY_SECONDS = 1.0
AHEAD_SECONDS = 2.0  # the workers' start has gone before
# The package may be in a zipapp, whose path -I leaves out of sys.path. In a source tree this path has
# no dtj_contract, and -S ignores .pth files: the server must not import dtj_contract.
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dtj_agent.store.server import main; main()"


class _Server(NamedTuple):
    """A server process; its end of `socket` is its standard input, whose end ends it."""

    pid: int
    socket: socket.socket


class StoreHost:
    """Calls `on_failed(why)` if no process can be started for a store that is needed, and
    `on_ended(wait status)` if the process ends without being stopped. `spared`: see
    `Supervisor.spared`.
    """

    def __init__(self, loop: Loop, environ: Mapping[str, str], spared: Dict[int, Callable[[int], None]]) -> None:
        self.on_failed: Callable[[str], None] = lambda why: None
        self.on_ended: Callable[[int], None] = lambda status: None
        self._loop = loop
        self._environ = environ
        self._spared = spared
        self._listeners: List[socket.socket] = []
        self._server: Optional[_Server] = None
        """The process that serves the current store."""
        self._ahead: Optional[_Server] = None
        """The process that waits for the next store."""
        self._tries = 0

    def open(self, bound: socket.socket) -> None:
        """Ends the previous attempt's store and begins the next on a bound socket.

        Raises OSError if the socket can't listen.
        """
        self.close()
        self._tries = 0
        try:
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
        self._listeners = [bound]
        local = _on_loopback(bound)
        if local is not None:
            self._listeners.append(local)
        for listener in self._listeners:
            self._loop.watch(listener, READ, lambda events: self._serve())

    def close(self) -> None:
        """Ends the store. Call this when every rank of its attempt has ended."""
        self._unlisten()
        if self._server is not None:
            self._server.socket.close()
            self._server = None

    def end(self) -> None:
        """Ends the store and the process that waits for the next one. Call this when the agent exits."""
        self.close()
        if self._ahead is not None:
            self._ahead.socket.close()
            self._ahead = None

    def _serve(self) -> None:
        for listener in self._listeners:
            # The first connection waits in the kernel until the server accepts it.
            self._loop.unwatch(listener)
        try:
            self._hand_over()
        except OSError as error:
            self._tries += 1
            why = "can't start the rendezvous store: %s" % error.strerror
            if self._tries >= TRIES:
                self._unlisten()
                self.on_failed(why)
            else:
                self._loop.later(RETRY_SECONDS, self._serve_again(self._listeners))
        else:
            self._unlisten()

    def _serve_again(self, listeners: List[socket.socket]) -> Callable[[], None]:
        return lambda: self._serve() if listeners and listeners is self._listeners else None

    def _hand_over(self) -> None:
        """Gives the listeners to the process that waits for them, or to a new one."""
        descriptors = [listener.fileno() for listener in self._listeners]
        server, self._ahead = self._ahead, None
        if server is None or not _send(server, descriptors):
            server = self._spawn()
            if not _send(server, descriptors):
                raise ConnectionResetError(104, "the process has ended")
        self._server = server
        self._loop.later(AHEAD_SECONDS, self._start_ahead)

    def _start_ahead(self) -> None:
        if self._server is None or self._ahead is not None:
            return  # closed meanwhile
        try:
            self._ahead = self._spawn()
        except OSError:
            pass  # the next store starts its own

    def _spawn(self) -> _Server:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        ours, theirs = socket.socketpair()
        arguments = [sys.executable, "-I", "-S", "-c", PROGRAM, root]
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        try:
            pid = os.posix_spawn(
                sys.executable, arguments, dict(self._environ), file_actions=actions,
                setsigmask=(), setsigdef=(signal.SIGCHLD, signal.SIGPIPE), **OWN_SESSION,
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        server = _Server(pid, ours)
        self._spared[pid] = lambda status: self._ended(server, status)
        return server

    def _ended(self, server: _Server, status: int) -> None:
        if self._ahead is server:
            self._ahead = None
            server.socket.close()
        if self._server is server:  # this agent did not stop it
            self.close()
            self.on_ended(status)

    def _unlisten(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.unwatch(listener)
            listener.close()


def _send(server: _Server, descriptors: List[int]) -> bool:
    """Sends open listeners to a server process. Returns False, and lets go of the process, if it has ended."""
    try:
        socket.send_fds(server.socket, [b"\0"], descriptors)
    except OSError:
        server.socket.close()
        return False
    return True


def _on_loopback(bound: socket.socket) -> Optional[socket.socket]:
    """Returns a listener on the same port of the loopback address; None if that port is taken.

    A script may call the store of its own machine `localhost`.
    """
    host, port = bound.getsockname()[:2]
    loopback = "::1" if bound.family == socket.AF_INET6 else "127.0.0.1"
    if host == loopback:
        return None
    sock = socket.socket(bound.family, socket.SOCK_STREAM)
    try:
        sock.bind((loopback, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        return None
    return sock
