"""The agent's side of the rendezvous store: listens from the start of an attempt, and starts the server when needed.

The first connection starts the server process, so a script without torch.distributed never costs
that process. The port is bound all the time, so no other program can take it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Callable, Dict, List, Mapping, Optional

from dtj_agent.net.loop import READ, Loop
from dtj_agent.workers.supervisor import OWN_SESSION

BACKLOG = 4096
TRIES = 5
RETRY_SECONDS = 1.0
# The package may be in a zipapp, whose path -I leaves out of sys.path. In a source tree this path has
# no dtj_contract, and -S ignores .pth files: the server must not import dtj_contract.
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dtj_agent.store.server import main; main()"


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
        # Our end of the server's standard input: closing it ends the server.
        self._holder: Optional[int] = None
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
        """Ends the store. Call this when every rank of its attempt has ended, or the agent exits."""
        self._unlisten()
        if self._holder is not None:
            os.close(self._holder)
            self._holder = None

    def _serve(self) -> None:
        for listener in self._listeners:
            # The first connection waits in the kernel until the server accepts it.
            self._loop.unwatch(listener)
        try:
            self._spawn()
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

    def _spawn(self) -> None:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        reader, writer = os.pipe()
        arguments = [sys.executable, "-I", "-S", "-c", PROGRAM, root, *(str(each.fileno()) for each in self._listeners)]
        try:
            for listener in self._listeners:
                listener.set_inheritable(True)
            pid = os.posix_spawn(
                sys.executable, arguments, dict(self._environ),
                file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
                setsigmask=(), setsigdef=(signal.SIGCHLD, signal.SIGPIPE), **OWN_SESSION,
            )  # fmt: skip
        except OSError:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._holder = writer
        self._spared[pid] = lambda status: self._ended(writer, status)

    def _ended(self, holder: int, status: int) -> None:
        if self._holder == holder:  # this agent did not stop it
            self.close()
            self.on_ended(status)

    def _unlisten(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.unwatch(listener)
            listener.close()


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
